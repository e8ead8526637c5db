// A recorded forward pass: a list of ops over fixed buffers, run in one call for any batch.
//
// Whoever builds it guarantees that shapes fit and that all memory it points to outlives it; sizes
// and indices come from StepInputs alone and are checked at the start of each run.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "aligned_array.hpp"
#include "attention_plan.hpp"
#include "attention_run.hpp"
#include "backend.hpp"
#include "cost.hpp"
#include "experts.hpp"
#include "head.hpp"
#include "matrix.hpp"

namespace treadle {

// A KV pool as a whole. `data` holds, per block, all layers: what few requests use lies in few of the
// huge pages, where a layer's blocks by themselves would begin one for each layer.
struct KVPool {
  uint8_t* data;
  KVType type;
  int64_t layers;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t block_size;
  int64_t blocks;

  KVLayer layer(int64_t index) const;
  int64_t bytes() const;
};

struct StepInputs {
  int64_t max_tokens;
  int64_t max_rows;
  int64_t max_logits;
  const int32_t* token_ids;
  const int32_t* positions;
  const int32_t* row_starts;
  const int32_t* table_rows;
  const int32_t* logit_tokens;
  // Per KV group.
  std::vector<const int32_t*> slots;
  std::vector<const int32_t*> tables;
  std::vector<int64_t> table_blocks;
};

struct StepSizes {
  int64_t tokens;
  int64_t rows;
  int64_t logits;     // rows of them that are wanted
  int64_t likeliest;  // rows behind these of which only the likeliest token is

  int64_t logit_rows() const { return logits + likeliest; }
};

// A buffer of the program; token_rows tells whether it has a row per token or per row of logits.
struct Buffer {
  Activations data;
  bool token_rows;
};

// Without pairs nothing is turned.
struct Rope {
  const float* cos;
  const float* sin;
  int64_t positions;
  int64_t pairs;
  bool interleaved;
};

struct Norm {
  const float* weight;
  const float* bias;  // or null
  float eps;
};

// One layer of one KV group.
struct KVPlace {
  size_t group;
  int64_t layer;
};

class Program {
 public:
  Program(std::shared_ptr<Backend> backend, StepInputs inputs, std::vector<KVPool> pools);
  // Ops keep its address.
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // What the ops that follow are part of, for profiles.
  void label(std::string label) { label_ = std::move(label); }
  void embed(const Matrix& table, const Buffer& out, float scale);
  void embed_positions(const Matrix& table, const Buffer& out);
  void rms_norm(const Buffer& x, const Norm& norm, const Buffer& out, bool accumulate);
  void layer_norm(const Buffer& x, const Norm& norm, const Buffer& out);
  void linear(const Buffer& x, const Matrix& matrix, const Buffer& out, const float* bias,
              bool accumulate);
  void rope_store(const Buffer& qkv, int64_t heads, const Rope& rope, const HeadNorms& norms,
                  const KVPlace& place);
  void attention(const Buffer& qkv, int64_t heads, const KVPlace& place, const Buffer& out,
                 const Masking& masking);
  void gated(const Buffer& gate_up, Activation activation, const Buffer& out);
  void activate(const Buffer& x, Activation activation, const Buffer& out);
  void copy(const Buffer& x, const Buffer& out);
  void experts(const Buffer& x, const Buffer& router, std::vector<Matrix> gate_up,
               std::vector<Matrix> down, const Buffer& out, const Routing& routing);
  void select(const Buffer& x, const Buffer& out);
  // The last product. Of rows that want no logits the token is left in `likeliest`.
  void head(const Buffer& x, const Matrix& matrix, const Buffer& logits, float cap,
            int32_t* likeliest);
  // Allocates what the ops share. No op may follow.
  void finish();
  // What ops share: allocated when the recording ends, and nothing after that. Buffers, which are
  // the caller's, are not counted.
  int64_t bytes() const;

  // Throws std::invalid_argument for sizes or indices out of range.
  void run(const StepSizes& sizes);

  // The same with the time and cost of each op, in their order.
  std::vector<OpTime> profile(const StepSizes& sizes);

 private:
  // What an op costs may be asked when it has run.
  struct Op {
    std::function<void(Pool&, const StepSizes&)> run;
    std::function<Cost(const StepSizes&)> cost;
    std::string kernel;
    Unit unit;
    std::string label;
  };

  template <class Run, class CostOf>
  void add(std::string kernel, Run&& run, CostOf&& cost, Unit unit = Unit::kFloats);
  void prepare(const StepSizes& sizes);
  void check(const StepSizes& sizes) const;
  void check_group(const StepSizes& sizes, size_t group) const;
  template <class Args>
  void add_row_op(const char* name, void (*kernel)(const Args&, int64_t, int64_t),
                  const Args& args, const Buffer& x, const Cost& cost);
  template <class Args>
  void add_region_op(const char* name, void (*kernel)(const Args&, const Region&),
                     const Args& args, const Buffer& out, const Cost& cost,
                     Cut cut = Cut::kRowsAndColumns);
  Cost attention_cost_of(const AttentionArgs& args, const StepSizes& sizes) const;
  KVLayer kv_layer(const KVPlace& place) const;
  size_t plan_for(const AttentionShape& shape);
  float* scratch(int thread) const { return scratch_.get() + thread * scratch_floats_; }

  std::shared_ptr<Backend> backend_;
  const Kernels& kernels_;
  StepInputs inputs_;
  std::vector<KVPool> pools_;
  std::vector<Op> ops_;
  std::string label_;
  std::vector<AttentionPlan> plans_;
  // Per KV group, the largest of the windows that attention has into it.
  std::vector<int64_t> windows_;
  // Bounds of token ids and of positions.
  int64_t vocabulary_;
  int64_t positions_;
  bool finds_likeliest_ = false;
  int64_t scratch_floats_ = 0;
  int64_t partials_floats_ = 0;
  AlignedArray<float> scratch_;
  AlignedArray<float> partials_;
  AttentionRun attention_;
  ExpertMemory expert_memory_;
  int64_t head_bytes_ = 0;
};

}  // namespace treadle

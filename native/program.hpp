// A recorded forward pass: a list of ops over fixed buffers, run in one call for any batch.
//
// Whoever builds it guarantees that shapes fit and that all memory it points to outlives it; sizes
// and indices come from StepInputs alone and are checked at the start of each run.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "attention_plan.hpp"
#include "backend.hpp"
#include "matrix.hpp"

namespace treadle {

// A KV pool as a whole. `data` holds, per layer, all blocks.
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
  int64_t logits;
};

// A buffer of the program; token_rows tells whether it has a row per token or per row of logits.
struct Buffer {
  Activations data;
  bool token_rows;
};

struct Rope {
  const float* cos;
  const float* sin;
  int64_t positions;
  int64_t pairs;
  bool interleaved;
};

class Program {
 public:
  Program(std::shared_ptr<Backend> backend, StepInputs inputs, std::vector<KVPool> pools);
  // Ops keep its address.
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void embed(const Matrix& table, const Buffer& out, float scale);
  void rms_norm(const Buffer& x, const float* weight, float eps, const Buffer& out);
  void linear(const Buffer& x, const Matrix& matrix, const Buffer& out, const float* bias,
              bool accumulate);
  void rope_store(const Buffer& qkv, int64_t heads, const Rope& rope, int64_t group,
                  int64_t layer);
  void attention(const Buffer& qkv, int64_t heads, int64_t group, int64_t layer,
                 const Buffer& out, float scale);
  void gated_silu(const Buffer& gate_up, const Buffer& out);
  void select(const Buffer& x, const Buffer& out);
  // Allocates what the ops share. No op may follow.
  void finish();

  // Throws std::invalid_argument for sizes or indices out of range.
  void run(const StepSizes& sizes);

 private:
  using Op = std::function<void(Pool&, const StepSizes&)>;

  void check(const StepSizes& sizes) const;
  void check_group(const StepSizes& sizes, size_t group) const;
  void run_linear(Pool& pool, LinearArgs args, int64_t rows) const;
  void run_attention(Pool& pool, const AttentionArgs& args, const AttentionPlan& plan);
  size_t plan_for(const AttentionShape& shape);

  std::shared_ptr<Backend> backend_;
  const Kernels& kernels_;
  StepInputs inputs_;
  std::vector<KVPool> pools_;
  std::vector<Op> ops_;
  std::vector<AttentionPlan> plans_;
  int64_t vocabulary_;
  int64_t rope_positions_;
  int64_t scratch_floats_ = 0;
  std::unique_ptr<float[]> scratch_;
  std::unique_ptr<float[]> partials_;
};

}  // namespace treadle

// Runs the attention of one layer by a step's plan.
//
// What waits for several items, a token's output or the quantised form of a tile of rows, is done by
// the thread that ends the last of them: another round of the pool would cost more.
#pragma once

#include <atomic>
#include <memory>

#include "attention_plan.hpp"
#include "pool.hpp"

namespace treadle {

struct AttentionOp {
  AttentionArgs args;
  QuantiseArgs quantise;  // from the output, if its records are read by somebody
  float* scratch;
  int64_t scratch_floats;  // per thread
};

class AttentionRun {
 public:
  // Room for steps of so many tokens.
  void fit(int64_t tokens, int64_t kv_heads);
  void run(Pool& pool, const Kernels& kernels, const AttentionPlan& plan, const AttentionOp& op);

 private:
  struct Work;
  using Counter = std::atomic<int32_t>;

  void reset(const AttentionPlan& plan, const AttentionOp& op, int64_t tokens);
  void do_item(const Work& work, const AttentionItem& item, const HeadRange& heads, float* scratch);
  void end_token(const Work& work, int32_t token, int32_t heads);

  int64_t parts_room_ = 0;
  int64_t tiles_room_ = 0;
  std::unique_ptr<Counter[]> parts_;  // per combine and KV head: items that have not ended
  std::unique_ptr<Counter[]> tiles_;  // per row tile: KV heads of tokens without output
};

}  // namespace treadle

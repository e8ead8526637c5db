#include "attention_run.hpp"

#include <algorithm>

namespace treadle {
namespace {

// KV heads per claim: all of them where there are many items with a token or two, so that one can
// fetch the next head's while it works; else one, so that threads end together.
int64_t heads_at_once(const AttentionPlan& plan, int64_t kv_heads, int threads) {
  const auto items = static_cast<int64_t>(plan.items().size());
  const bool small = static_cast<int64_t>(plan.tokens().size()) <= 2 * items;
  return small && items >= 8 * threads ? kv_heads : 1;
}

}  // namespace

struct AttentionRun::Work {
  const Kernels& kernels;
  const AttentionPlan& plan;
  const AttentionOp& op;
  const AttentionArgs& args;
};

void AttentionRun::fit(int64_t tokens, int64_t kv_heads) {
  parts_room_ = std::max(parts_room_, tokens * kv_heads);
  tiles_room_ = std::max(tiles_room_, ceil_div(tokens, kRowTile));
  parts_ = std::make_unique<Counter[]>(static_cast<size_t>(parts_room_));
  tiles_ = std::make_unique<Counter[]>(static_cast<size_t>(tiles_room_));
}

void AttentionRun::reset(const AttentionPlan& plan, const AttentionOp& op, int64_t tokens) {
  const int64_t kv_heads = op.args.kv.kv_heads;
  const auto combines = static_cast<int32_t>(plan.combines().size());
  for (int32_t c = 0; c < combines; ++c) {
    for (int64_t h = 0; h < kv_heads; ++h) {
      parts_[static_cast<size_t>(c * kv_heads + h)].store(plan.parts_of(c),
                                                          std::memory_order_relaxed);
    }
  }
  if (!op.quantise.x.keep_records) return;
  for (int64_t first = 0; first < tokens; first += kRowTile) {
    const int64_t rows = std::min(kRowTile, tokens - first);
    tiles_[static_cast<size_t>(first / kRowTile)].store(static_cast<int32_t>(rows * kv_heads),
                                                        std::memory_order_relaxed);
  }
}

void AttentionRun::run(Pool& pool, const Kernels& kernels, const AttentionPlan& plan,
                       const AttentionOp& op) {
  reset(plan, op, plan.num_tokens());
  AttentionArgs args = op.args;
  args.tokens = plan.tokens().data();
  const Work work{kernels, plan, op, args};
  const int64_t kv_heads = args.kv.kv_heads;
  const auto items = static_cast<int64_t>(plan.items().size());
  const int64_t step = heads_at_once(plan, kv_heads, pool.threads());
  const int64_t ranges = kv_heads / step;
  pool.each(items * ranges, [&](int64_t i, int thread) {
    const int64_t head = i % ranges * step;
    do_item(work, plan.items()[static_cast<size_t>(i / ranges)], {head, head + step},
            op.scratch + thread * op.scratch_floats);
  });
}

void AttentionRun::do_item(const Work& work, const AttentionItem& item, const HeadRange& heads,
                           float* scratch) {
  work.kernels.attend(work.args, item, heads, scratch);
  const int32_t* tokens = work.args.tokens + item.first;
  const int64_t kv_heads = work.args.kv.kv_heads;
  const int64_t group = work.args.heads / kv_heads;
  for (int32_t t = 0; t < item.count; ++t) {
    auto ended = static_cast<int32_t>(heads.last - heads.first);
    if (item.result != Result::kOutput) {
      ended = 0;
      const int32_t combine = work.plan.combine_of(tokens[t]);
      for (int64_t h = heads.first; h < heads.last; ++h) {
        Counter& left = parts_[static_cast<size_t>(combine * kv_heads + h)];
        if (left.fetch_sub(1, std::memory_order_acq_rel) > 1) continue;
        ++ended;
        for (int64_t head = h * group; head < (h + 1) * group; ++head) {
          work.kernels.combine(work.args, work.plan.combines()[static_cast<size_t>(combine)],
                               head);
        }
      }
    }
    if (ended > 0) end_token(work, tokens[t], ended);
  }
}

void AttentionRun::end_token(const Work& work, int32_t token, int32_t heads) {
  if (!work.op.quantise.x.keep_records) return;
  const int64_t tile = token / kRowTile;
  Counter& left = tiles_[static_cast<size_t>(tile)];
  if (left.fetch_sub(heads, std::memory_order_acq_rel) > heads) return;
  const int64_t first = tile * kRowTile;
  const int64_t last = std::min(first + kRowTile, work.plan.num_tokens());
  work.kernels.quantise(work.op.quantise, {first, last, 0, work.op.quantise.x.width});
}

}  // namespace treadle

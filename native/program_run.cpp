// Running a program: what a step names is checked first, as the ops trust it.
#include <chrono>
#include <stdexcept>

#include "program.hpp"

namespace treadle {
namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

}  // namespace

void Program::check_group(const StepSizes& sizes, size_t group) const {
  const KVPool& pool = pools_[group];
  const int64_t slots = pool.blocks * pool.block_size;
  const int64_t context = inputs_.table_blocks[group] * pool.block_size;
  for (int64_t t = 0; t < sizes.tokens; ++t) {
    require(inputs_.slots[group][t] >= 0 && inputs_.slots[group][t] < slots,
            "a slot is outside its KV pool");
    require(inputs_.positions[t] < context, "a position is outside its block table");
  }
  for (int64_t r = 0; r < sizes.rows; ++r) {
    require(inputs_.table_rows[r] >= 0 && inputs_.table_rows[r] < inputs_.max_rows,
            "a table row is out of range");
    const int64_t last = inputs_.row_starts[r + 1] - 1;
    if (last < inputs_.row_starts[r]) continue;
    const int32_t* table =
        inputs_.tables[group] + inputs_.table_rows[r] * inputs_.table_blocks[group];
    // Blocks that no window reaches back to need not exist any more.
    const int64_t seen = first_seen(inputs_.positions[inputs_.row_starts[r]], windows_[group]);
    for (int64_t b = seen / pool.block_size; b <= inputs_.positions[last] / pool.block_size; ++b) {
      require(table[b] >= 0 && table[b] < pool.blocks, "a block table names no block of its pool");
    }
  }
}

void Program::check(const StepSizes& sizes) const {
  require(sizes.tokens >= 0 && sizes.tokens <= inputs_.max_tokens, "too many tokens for a step");
  require(sizes.rows >= 0 && sizes.rows <= inputs_.max_rows, "too many rows for a step");
  require(sizes.logits >= 0 && sizes.likeliest >= 0 && sizes.logit_rows() <= inputs_.max_logits,
          "too many logits for a step");
  require(sizes.likeliest == 0 || finds_likeliest_, "the program was recorded without a head");
  require(inputs_.row_starts[0] == 0 && inputs_.row_starts[sizes.rows] == sizes.tokens,
          "row_starts do not cover the tokens");
  for (int64_t r = 0; r < sizes.rows; ++r) {
    require(inputs_.row_starts[r] <= inputs_.row_starts[r + 1], "row_starts fall");
    // Attention alone takes a row's positions from its first.
    if (plans_.empty()) continue;
    for (int64_t t = inputs_.row_starts[r] + 1; t < inputs_.row_starts[r + 1]; ++t) {
      require(inputs_.positions[t] == inputs_.positions[t - 1] + 1,
              "the positions of a row do not follow each other");
    }
  }
  for (int64_t t = 0; t < sizes.tokens; ++t) {
    require(inputs_.token_ids[t] >= 0 && inputs_.token_ids[t] < vocabulary_,
            "a token id is outside the vocabulary");
    require(inputs_.positions[t] >= 0 && inputs_.positions[t] < positions_,
            "a position is past the last of the model");
  }
  for (int64_t l = 0; l < sizes.logit_rows(); ++l) {
    require(inputs_.logit_tokens[l] >= 0 && inputs_.logit_tokens[l] < sizes.tokens,
            "logits are asked of a token that the step does not have");
  }
  for (size_t group = 0; group < pools_.size(); ++group) check_group(sizes, group);
}

void Program::prepare(const StepSizes& sizes) {
  check(sizes);
  for (AttentionPlan& plan : plans_) {
    const size_t group = plan.shape().kv_group;
    plan.make({sizes.rows, inputs_.positions, inputs_.row_starts, inputs_.table_rows,
               inputs_.tables[group], inputs_.table_blocks[group], pools_[group].block_size});
  }
}

void Program::run(const StepSizes& sizes) {
  backend_->with_pool([&](Pool& pool) {
    pool.rouse();
    prepare(sizes);
    for (const Op& op : ops_) op.run(pool, sizes);
  });
}

std::vector<OpTime> Program::profile(const StepSizes& sizes) {
  using Clock = std::chrono::steady_clock;
  std::vector<OpTime> times;
  times.reserve(ops_.size());
  backend_->with_pool([&](Pool& pool) {
    prepare(sizes);
    for (const Op& op : ops_) {
      const auto began = Clock::now();
      op.run(pool, sizes);
      const std::chrono::nanoseconds took = Clock::now() - began;
      times.push_back({op.label, op.kernel, op.unit, op.cost(sizes), took.count()});
    }
  });
  return times;
}

}  // namespace treadle

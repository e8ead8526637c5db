#include "program.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

namespace treadle {
namespace {

// Work, in multiply-adds or about as costly steps, below which an item of its own is not worth the
// claim, and items per thread beyond which finer ones balance no better.
constexpr int64_t kMinPieceWork = 48 * 1024;
constexpr int64_t kItemsPerThread = 8;
// Columns and rows of one item of a large product: its weights stay in the second-level cache while
// the rows pass, and its rows while the columns do.
constexpr int64_t kMaxItemPanels = 16;
constexpr int64_t kMaxItemRows = 128;
// From this many rows on, weights are used often enough that fetching them ahead gains nothing.
constexpr int64_t kStreamRows = 64;

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

// Calls work(first, last) on ranges of rows, as many as their work is worth.
template <class Work>
void each_row(Pool& pool, int64_t rows, int64_t width, Work&& work) {
  if (rows == 0) return;
  // A value costs several steps.
  const int64_t by_work = std::max<int64_t>(rows * width * 8 / kMinPieceWork, 1);
  const int64_t step = ceil_div(rows, std::min({rows, by_work, kItemsPerThread * pool.threads()}));
  pool.each(ceil_div(rows, step), [&](int64_t piece, int) {
    work(piece * step, std::min(rows, (piece + 1) * step));
  });
}

int64_t element_bytes(KVType type) { return type == KVType::kF32 ? 4 : 2; }

}  // namespace

KVLayer KVPool::layer(int64_t index) const {
  KVLayer kv{};
  const int64_t bytes = element_bytes(type);
  kv.type = type;
  kv.grouped = block_size % kLanes == 0;
  kv.kv_heads = kv_heads;
  kv.head_dim = head_dim;
  kv.padded_dim = round_up(head_dim, kLanes);
  kv.block_size = block_size;
  kv.v_offset = block_size * (kv.grouped ? head_dim : kv.padded_dim) * bytes;
  kv.head_bytes = kv.v_offset + block_size * kv.padded_dim * bytes;
  kv.block_bytes = kv.head_bytes * kv_heads;
  kv.data = data + index * blocks * kv.block_bytes;
  return kv;
}

int64_t KVPool::bytes() const { return layers * blocks * layer(0).block_bytes; }

Program::Program(std::shared_ptr<Backend> backend, StepInputs inputs, std::vector<KVPool> pools)
    : backend_(std::move(backend)),
      kernels_(backend_->kernels),
      inputs_(std::move(inputs)),
      pools_(std::move(pools)),
      vocabulary_(std::numeric_limits<int64_t>::max()),
      rope_positions_(std::numeric_limits<int64_t>::max()) {}

void Program::embed(const Matrix& table, const Buffer& out, float scale) {
  const Part& last = table.parts.back();
  vocabulary_ = std::min(vocabulary_, last.column + last.n);
  ops_.emplace_back([this, table, out = out.data, scale](Pool& pool, const StepSizes& sizes) {
    each_row(pool, sizes.tokens, table.k, [&](int64_t first, int64_t last_token) {
      for (int64_t t = first; t < last_token; ++t) {
        read_row(table, inputs_.token_ids[t], scale, out.values + t * out.stride);
      }
    });
  });
}

void Program::rms_norm(const Buffer& x, const float* weight, float eps, const Buffer& out) {
  const NormArgs args{x.data, out.data, weight, eps};
  ops_.emplace_back([this, args, tokens = x.token_rows](Pool& pool, const StepSizes& sizes) {
    each_row(pool, tokens ? sizes.tokens : sizes.logits, args.x.width,
             [&](int64_t first, int64_t last) { kernels_.rms_norm(args, first, last); });
  });
}

void Program::linear(const Buffer& x, const Matrix& matrix, const Buffer& out, const float* bias,
                     bool accumulate) {
  for (const Part& part : matrix.parts) {
    const LinearArgs args{part, x.data, out.data.values, out.data.stride, bias, accumulate, false};
    ops_.emplace_back([this, args, tokens = x.token_rows](Pool& pool, const StepSizes& sizes) {
      run_linear(pool, args, tokens ? sizes.tokens : sizes.logits);
    });
  }
}

// Cut by columns and by whole row tiles, never along K.
void Program::run_linear(Pool& pool, LinearArgs args, int64_t rows) const {
  if (rows == 0) return;
  args.stream = rows <= kStreamRows;
  const auto kernel = kernels_.linear[static_cast<size_t>(args.part.type)];
  const int64_t panel_work = args.part.k * kLanes;
  const int64_t row_step = std::min(kMaxItemRows, round_up(rows, kRowTile));
  const int64_t row_items = ceil_div(rows, row_step);
  const int64_t wanted =
      std::clamp<int64_t>(args.part.panels * panel_work * rows / kMinPieceWork, 1,
                          kItemsPerThread * pool.threads());
  int64_t panel_step = ceil_div(args.part.panels * row_items, wanted);
  if (panel_step > 4) panel_step = round_up(panel_step, 4);
  if (row_items > 1) panel_step = std::min(panel_step, kMaxItemPanels);
  const int64_t panel_items = ceil_div(args.part.panels, panel_step);
  pool.each(panel_items * row_items, [&](int64_t item, int) {
    const int64_t panel = item / row_items * panel_step;
    const int64_t row = item % row_items * row_step;
    kernel(args, panel, std::min(args.part.panels, panel + panel_step), row,
           std::min(rows, row + row_step));
  });
}

void Program::rope_store(const Buffer& qkv, int64_t heads, const Rope& rope, int64_t group,
                         int64_t layer) {
  rope_positions_ = std::min(rope_positions_, rope.positions);
  const size_t g = static_cast<size_t>(group);
  const RopeArgs args{qkv.data.values, qkv.data.stride,  heads,
                      rope.cos,        rope.sin,         rope.pairs,
                      rope.interleaved, inputs_.positions, inputs_.slots[g],
                      pools_[g].layer(layer)};
  ops_.emplace_back([this, args, width = qkv.data.width](Pool& pool, const StepSizes& sizes) {
    each_row(pool, sizes.tokens, width,
             [&](int64_t first, int64_t last) { kernels_.rope_store(args, first, last); });
  });
}

size_t Program::plan_for(const AttentionShape& shape) {
  const auto known = std::find_if(plans_.begin(), plans_.end(),
                                  [&](const AttentionPlan& p) { return p.shape() == shape; });
  if (known == plans_.end()) {
    plans_.emplace_back(shape);
    return plans_.size() - 1;
  }
  return static_cast<size_t>(known - plans_.begin());
}

void Program::attention(const Buffer& qkv, int64_t heads, int64_t group, int64_t layer,
                        const Buffer& out, float scale) {
  const size_t g = static_cast<size_t>(group);
  const KVLayer kv = pools_[g].layer(layer);
  const AttentionShape shape{heads,
                             kv.kv_heads,
                             kv.padded_dim,
                             inputs_.max_tokens,
                             inputs_.table_blocks[g] * kv.block_size,
                             backend_->threads()};
  const size_t plan = plan_for(shape);
  scratch_floats_ =
      std::max(scratch_floats_, attention_scratch_floats(shape.group(), kv.padded_dim));
  const AttentionArgs args{qkv.data.values,   qkv.data.stride,
                           out.data.values,   out.data.stride,
                           heads,             scale,
                           kv,                inputs_.positions,
                           inputs_.table_rows, inputs_.tables[g],
                           inputs_.table_blocks[g], nullptr};
  ops_.emplace_back([this, args, plan](Pool& pool, const StepSizes&) {
    run_attention(pool, args, plans_[plan]);
  });
  if (!out.data.keep_records) return;
  // A block of 32 may lie across two KV heads, so this waits for all of them.
  ops_.emplace_back([this, args = QuantiseArgs{out.data}](Pool& pool, const StepSizes& sizes) {
    each_row(pool, sizes.tokens, args.x.width,
             [&](int64_t first, int64_t last) { kernels_.quantise(args, first, last); });
  });
}

void Program::run_attention(Pool& pool, const AttentionArgs& shared, const AttentionPlan& plan) {
  AttentionArgs args = shared;
  args.partials = partials_.get();
  const int64_t kv_heads = args.kv.kv_heads;
  const int64_t items = static_cast<int64_t>(plan.items().size());
  // With items enough, one takes all KV heads, so that it can fetch the next while it works.
  const int64_t step = items >= kItemsPerThread * pool.threads() ? kv_heads : 1;
  const int64_t ranges = kv_heads / step;
  pool.each(items * ranges, [&](int64_t i, int thread) {
    const int64_t head = i % ranges * step;
    kernels_.attend(args, plan.items()[static_cast<size_t>(i / ranges)], {head, head + step},
                    scratch_.get() + thread * scratch_floats_);
  });
  const int64_t combines = static_cast<int64_t>(plan.combines().size());
  pool.each(combines * kv_heads, [&](int64_t i, int) {
    const int64_t group = args.heads / kv_heads;
    for (int64_t h = i % kv_heads * group; h < (i % kv_heads + 1) * group; ++h) {
      kernels_.combine(args, plan.combines()[static_cast<size_t>(i / kv_heads)], h);
    }
  });
}

void Program::gated_silu(const Buffer& gate_up, const Buffer& out) {
  const GatedArgs args{gate_up.data, out.data};
  ops_.emplace_back([this, args, tokens = out.token_rows](Pool& pool, const StepSizes& sizes) {
    each_row(pool, tokens ? sizes.tokens : sizes.logits, args.gate_up.width,
             [&](int64_t first, int64_t last) { kernels_.gated_silu(args, first, last); });
  });
}

void Program::select(const Buffer& x, const Buffer& out) {
  ops_.emplace_back([this, from = x.data, to = out.data](Pool&, const StepSizes& sizes) {
    for (int64_t l = 0; l < sizes.logits; ++l) {
      std::memcpy(to.values + l * to.stride, from.values + inputs_.logit_tokens[l] * from.stride,
                  static_cast<size_t>(to.width) * sizeof(float));
    }
  });
}

void Program::finish() {
  // One cache line apart at least, as threads write them at once.
  scratch_floats_ = round_up(scratch_floats_, kLanes) + kLanes;
  scratch_ = std::make_unique_for_overwrite<float[]>(
      static_cast<size_t>(scratch_floats_ * backend_->threads()));
  int64_t partial = 0;
  for (const AttentionPlan& plan : plans_) {
    partial = std::max(partial, plan.partial_records() * partial_floats(plan.shape().padded_dim));
  }
  partials_ = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(partial));
}

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
    for (int64_t b = 0; b <= inputs_.positions[last] / pool.block_size; ++b) {
      require(table[b] >= 0 && table[b] < pool.blocks, "a block table names no block of its pool");
    }
  }
}

void Program::check(const StepSizes& sizes) const {
  require(sizes.tokens >= 0 && sizes.tokens <= inputs_.max_tokens, "too many tokens for a step");
  require(sizes.rows >= 0 && sizes.rows <= inputs_.max_rows, "too many rows for a step");
  require(sizes.logits >= 0 && sizes.logits <= inputs_.max_rows, "too many logits for a step");
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
    require(inputs_.positions[t] >= 0 && inputs_.positions[t] < rope_positions_,
            "a position is outside the window");
  }
  for (int64_t l = 0; l < sizes.logits; ++l) {
    require(inputs_.logit_tokens[l] >= 0 && inputs_.logit_tokens[l] < sizes.tokens,
            "logits are asked of a token that the step does not have");
  }
  for (size_t group = 0; group < pools_.size(); ++group) check_group(sizes, group);
}

void Program::run(const StepSizes& sizes) {
  backend_->with_pool([&](Pool& pool) {
    check(sizes);
    for (AttentionPlan& plan : plans_) {
      plan.make(inputs_.positions, inputs_.row_starts, sizes.rows);
    }
    for (const Op& op : ops_) op(pool, sizes);
  });
}

}  // namespace treadle

#include "program.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

namespace treadle {
namespace {

int64_t count(bool tokens, const StepSizes& sizes) { return tokens ? sizes.tokens : sizes.logit_rows(); }

// Costs of an op whose rows cost the same, its weights once.
auto cost_of_rows(bool tokens, const Cost& row) {
  return [tokens, row](const StepSizes& sizes) {
    Cost all = row * count(tokens, sizes);
    all.weight_bytes = row.weight_bytes;
    return all;
  };
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
  const int64_t layer_bytes = kv.head_bytes * kv_heads;
  kv.block_bytes = layers * layer_bytes;
  kv.data = data + index * layer_bytes;
  return kv;
}

// As the kernels want it.
KVLayer Program::kv_layer(const KVPlace& place) const {
  KVLayer kv = pools_[place.group].layer(place.layer);
  kv.paired = kernels_.pairs_bf16 && kv.type == KVType::kBF16 && kv.head_dim % 2 == 0;
  return kv;
}

int64_t KVPool::bytes() const { return blocks * layer(0).block_bytes; }

Program::Program(std::shared_ptr<Backend> backend, StepInputs inputs, std::vector<KVPool> pools)
    : backend_(std::move(backend)),
      kernels_(backend_->kernels),
      inputs_(std::move(inputs)),
      pools_(std::move(pools)),
      windows_(pools_.size(), 1),
      vocabulary_(std::numeric_limits<int64_t>::max()),
      positions_(std::numeric_limits<int64_t>::max()) {}

template <class Run, class CostOf>
void Program::add(std::string kernel, Run&& run, CostOf&& cost, Unit unit) {
  ops_.push_back({std::forward<Run>(run), std::forward<CostOf>(cost), std::move(kernel), unit,
                  label_});
}

void Program::embed(const Matrix& table, const Buffer& out, float scale) {
  const Part& last = table.parts.back();
  vocabulary_ = std::min(vocabulary_, last.column + last.n);
  const auto run = [this, table, out = out.data, scale](Pool& pool, const StepSizes& sizes) {
    each_row(pool, sizes.tokens, table.k, [&](int64_t first, int64_t last_token) {
      for (int64_t t = first; t < last_token; ++t) {
        read_row(table, inputs_.token_ids[t], scale, out.values + t * out.stride);
      }
    });
  };
  const Cost row{row_bytes(table), 0, row_bytes(out.data), 0};
  add("embed", run, [row](const StepSizes& sizes) { return row * sizes.tokens; });
}

void Program::embed_positions(const Matrix& table, const Buffer& out) {
  const Part& last = table.parts.back();
  positions_ = std::min(positions_, last.column + last.n);
  scratch_floats_ = std::max(scratch_floats_, table.k);
  const auto run = [this, table, out = out.data](Pool& pool, const StepSizes& sizes) {
    each_row_on_thread(pool, sizes.tokens, table.k, [&](int64_t first, int64_t end, int thread) {
      float* row = scratch(thread);
      for (int64_t t = first; t < end; ++t) {
        read_row(table, inputs_.positions[t], 1.0f, row);
        float* to = out.values + t * out.stride;
        for (int64_t i = 0; i < table.k; ++i) to[i] += row[i];
      }
    });
  };
  const Cost row{row_bytes(table), 0, 2 * row_bytes(out.data), table.k};
  add("embed_positions", run, [row](const StepSizes& sizes) { return row * sizes.tokens; });
}

// A kernel that takes each row for itself; `cost` is that of one row.
template <class Args>
void Program::add_row_op(const char* name, void (*kernel)(const Args&, int64_t, int64_t),
                         const Args& args, const Buffer& x, const Cost& cost) {
  const auto run = [kernel, args, tokens = x.token_rows, width = x.data.width](
                       Pool& pool, const StepSizes& sizes) {
    each_row(pool, count(tokens, sizes), width,
             [&](int64_t first, int64_t last) { kernel(args, first, last); });
  };
  add(name, run, cost_of_rows(x.token_rows, cost));
}

// The same where the kernel fills any region of `out`.
template <class Args>
void Program::add_region_op(const char* name, void (*kernel)(const Args&, const Region&),
                            const Args& args, const Buffer& out, const Cost& cost, Cut cut) {
  const auto run = [kernel, args, cut, tokens = out.token_rows, width = out.data.width](
                       Pool& pool, const StepSizes& sizes) {
    each_region(pool, count(tokens, sizes), width, cut,
                [&](const Region& region) { kernel(args, region); });
  };
  add(name, run, cost_of_rows(out.token_rows, cost));
}

void Program::rms_norm(const Buffer& x, const Norm& norm, const Buffer& out, bool accumulate) {
  const NormArgs args{x.data, out.data, norm.weight, nullptr, norm.eps, accumulate};
  add_region_op("rms_norm", kernels_.rms_norm, args, out, norm_cost(args, 4), Cut::kRows);
}

void Program::layer_norm(const Buffer& x, const Norm& norm, const Buffer& out) {
  const NormArgs args{x.data, out.data, norm.weight, norm.bias, norm.eps, false};
  add_region_op("layer_norm", kernels_.layer_norm, args, out, norm_cost(args, 7), Cut::kRows);
}

void Program::linear(const Buffer& x, const Matrix& matrix, const Buffer& out, const float* bias,
                     bool accumulate) {
  for (const Part& part : matrix.parts) {
    const LinearArgs args{part, x.data, out.data.values, out.data.stride, bias, accumulate, false};
    const auto run = [this, args, tokens = x.token_rows](Pool& pool, const StepSizes& sizes) {
      const int64_t rows = count(tokens, sizes);
      if (rows == 0) return;
      Product product{args, 0, rows};
      run_products(pool, kernels_, &product, 1);
    };
    const auto cost = [args, tokens = x.token_rows](const StepSizes& sizes) {
      const int64_t rows = count(tokens, sizes);
      return rows == 0 ? Cost{} : linear_cost(args, rows);
    };
    add("linear", run, cost, is_float(part.type) ? Unit::kFloats : Unit::kBytes);
  }
}

void Program::rope_store(const Buffer& qkv, int64_t heads, const Rope& rope,
                         const HeadNorms& norms, const KVPlace& place) {
  positions_ = std::min(positions_, rope.positions);
  const RopeArgs args{qkv.data.values,   qkv.data.stride,   heads,
                      rope.cos,          rope.sin,          rope.pairs,
                      rope.interleaved,  inputs_.positions, inputs_.slots[place.group],
                      norms,             kv_layer(place)};
  add_row_op("rope_store", kernels_.rope_store, args, qkv, rope_cost(args));
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

void Program::attention(const Buffer& qkv, int64_t heads, const KVPlace& place, const Buffer& out,
                        const Masking& masking) {
  const size_t g = place.group;
  const KVLayer kv = kv_layer(place);
  windows_[g] = std::max(windows_[g], masking.window);
  const AttentionShape shape{g,
                             heads,
                             kv.kv_heads,
                             kv.padded_dim,
                             inputs_.max_tokens,
                             inputs_.max_rows,
                             inputs_.table_blocks[g] * kv.block_size,
                             masking.window,
                             backend_->threads()};
  const size_t plan = plan_for(shape);
  scratch_floats_ =
      std::max(scratch_floats_, attention_scratch_floats(shape.group(), kv.padded_dim));
  attention_.fit(inputs_.max_tokens, kv.kv_heads);
  const AttentionArgs args{qkv.data.values,   qkv.data.stride,
                           out.data.values,   out.data.stride,
                           heads,             masking,
                           kv,                inputs_.positions,
                           inputs_.table_rows, inputs_.tables[g],
                           inputs_.table_blocks[g], nullptr, nullptr};
  add(
      "attention",
      [this, args, out = out.data, plan](Pool& pool, const StepSizes&) {
        AttentionOp op{args, {out}, scratch_.get(), scratch_floats_};
        op.args.partials = partials_.get();
        attention_.run(pool, kernels_, plans_[plan], op);
      },
      [this, args](const StepSizes& sizes) { return attention_cost_of(args, sizes); });
}

Cost Program::attention_cost_of(const AttentionArgs& args, const StepSizes& sizes) const {
  Cost all{};
  for (int64_t r = 0; r < sizes.rows; ++r) {
    const int64_t first = inputs_.row_starts[r];
    all += attention_cost(args, inputs_.positions[first], inputs_.row_starts[r + 1] - first);
  }
  return all;
}

void Program::gated(const Buffer& gate_up, Activation activation, const Buffer& out) {
  const Cost row{0, 0, 4 * gate_up.data.width + row_bytes(out.data),
                 kGatedOperations * out.data.width};
  add_region_op("gated", kernels_.gated, {gate_up.data, out.data, activation}, out, row);
}

void Program::activate(const Buffer& x, Activation activation, const Buffer& out) {
  const Cost row{0, 0, 4 * x.data.width + row_bytes(out.data),
                 (kGatedOperations - 1) * x.data.width};
  add_region_op("activate", kernels_.activate, {x.data, out.data, activation}, out, row);
}

void Program::copy(const Buffer& x, const Buffer& out) {
  const Cost row{0, 0, 4 * x.data.width + row_bytes(out.data), 0};
  add_region_op("copy", kernels_.copy, {x.data, out.data}, out, row);
}

void Program::experts(const Buffer& x, const Buffer& router, std::vector<Matrix> gate_up,
                      std::vector<Matrix> down, const Buffer& out, const Routing& routing) {
  Mixture mixture{x.data, router.data, std::move(gate_up), std::move(down), out.data, routing};
  expert_memory_.fit(mixture, x.token_rows ? inputs_.max_tokens : inputs_.max_logits);
  scratch_floats_ = std::max(scratch_floats_, round_up(mixture.experts(), kLanes));
  const Unit unit = is_float(mixture.down[0].parts[0].type) ? Unit::kFloats : Unit::kBytes;
  const auto experts = std::make_shared<Experts>(std::move(mixture), kernels_, expert_memory_);
  add(
      "experts",
      [this, experts, tokens = x.token_rows](Pool& pool, const StepSizes& sizes) {
        experts->run(pool, count(tokens, sizes), scratch(0), scratch_floats_);
      },
      [experts, tokens = x.token_rows](const StepSizes& sizes) {
        return experts->cost(count(tokens, sizes));
      },
      unit);
}

void Program::select(const Buffer& x, const Buffer& out) {
  const auto run = [this, from = x.data, to = out.data](Pool&, const StepSizes& sizes) {
    for (int64_t l = 0; l < sizes.logit_rows(); ++l) {
      std::memcpy(to.values + l * to.stride, from.values + inputs_.logit_tokens[l] * from.stride,
                  static_cast<size_t>(to.width) * sizeof(float));
    }
  };
  const Cost row{0, 0, 8 * x.data.width, 0};
  add("select", run, [row](const StepSizes& sizes) { return row * sizes.logit_rows(); });
}

void Program::head(const Buffer& x, const Matrix& matrix, const Buffer& logits, float cap,
                   int32_t* likeliest) {
  finds_likeliest_ = true;
  const HeadArgs args{x.data, logits.data, cap, likeliest};
  const auto head = std::make_shared<Head>(kernels_, args, matrix, inputs_.max_logits,
                                           backend_->threads());
  head_bytes_ += head->bytes();
  const bool floats = is_float(matrix.parts[0].type);
  add(
      "head",
      [head](Pool& pool, const StepSizes& sizes) { head->run(pool, sizes.logits, sizes.likeliest); },
      [head](const StepSizes& sizes) { return head->cost(sizes.logits, sizes.likeliest); },
      floats ? Unit::kFloats : Unit::kBytes);
}

void Program::finish() {
  // One cache line apart at least, as threads write them at once.
  scratch_floats_ = round_up(scratch_floats_, kLanes) + kLanes;
  scratch_ = AlignedArray<float>(scratch_floats_ * backend_->threads());
  for (const AttentionPlan& plan : plans_) {
    partials_floats_ = std::max(
        partials_floats_, plan.partial_records() * partial_floats(plan.shape().padded_dim));
  }
  partials_ = AlignedArray<float>(partials_floats_);
  expert_memory_.allocate();
}

int64_t Program::bytes() const {
  int64_t total = expert_memory_.bytes() + head_bytes_ + static_cast<int64_t>(sizeof(float)) *
                      (scratch_floats_ * backend_->threads() + partials_floats_);
  for (const AttentionPlan& plan : plans_) total += plan.bytes();
  return total;
}

}  // namespace treadle

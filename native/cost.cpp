#include "cost.hpp"

namespace treadle {
namespace {

constexpr int64_t kFloat = sizeof(float);

int64_t float_bytes(const Activations& a) { return a.width * kFloat; }

}  // namespace

Cost& Cost::operator+=(const Cost& other) {
  weight_bytes += other.weight_bytes;
  kv_bytes += other.kv_bytes;
  activation_bytes += other.activation_bytes;
  operations += other.operations;
  return *this;
}

Cost operator*(const Cost& cost, int64_t count) {
  return {cost.weight_bytes * count, cost.kv_bytes * count, cost.activation_bytes * count,
          cost.operations * count};
}

int64_t row_bytes(const Activations& a) {
  const int64_t blocks = a.width / kQuantBlock;
  const int64_t record = static_cast<int64_t>(sizeof(QuantRecord)) / kRowTile;
  return (a.keep_values ? float_bytes(a) : 0) + (a.keep_records ? blocks * record : 0);
}

int64_t row_bytes(const Matrix& table) { return table.parts[0].panel_bytes / kLanes; }

int64_t token_bytes(const KVLayer& kv) {
  return 2 * kv.kv_heads * kv.head_dim * (kv.type == KVType::kF32 ? 4 : 2);
}

Cost norm_cost(const NormArgs& args, int64_t operations) {
  const int64_t width = args.x.width;
  const int64_t weights = (args.bias == nullptr ? 1 : 2) * width * kFloat;
  const int64_t added = args.accumulate ? width : 0;
  return {weights, 0, float_bytes(args.x) + row_bytes(args.out) + added * kFloat,
          width * operations + added};
}

Cost rope_cost(const RopeArgs& args) {
  const int64_t kv_heads = args.kv.kv_heads;
  const int64_t turned = args.heads + kv_heads;
  const int64_t values = (2 * turned + kv_heads) * args.kv.head_dim + 2 * args.pairs;
  const int64_t norms = args.norms.q == nullptr ? 0 : 4 * turned * args.kv.head_dim;
  const int64_t weights =
      args.norms.q == nullptr ? 0 : (args.norms.q_span + args.norms.k_span) * kFloat;
  return {weights, token_bytes(args.kv), values * kFloat, 6 * turned * args.pairs + norms};
}

Cost linear_cost(const LinearArgs& args, int64_t rows) {
  const Part& part = args.part;
  Activations x = args.x;
  x.keep_values = is_float(part.type);
  x.keep_records = !x.keep_values;
  const int64_t bias = args.bias == nullptr ? 0 : part.n;
  const int64_t moved = row_bytes(x) + part.n * kFloat * (args.accumulate ? 2 : 1);
  const int64_t added = bias + (args.accumulate ? part.n : 0);
  return {part.panels * part.panel_bytes + bias * kFloat, 0, rows * moved,
          rows * (2 * part.n * part.k + added)};
}

Cost attention_cost(const AttentionArgs& args, int64_t position, int64_t tokens) {
  if (tokens == 0) return {};
  const int64_t last = position + tokens - 1;
  const int64_t window = args.masking.window;
  int64_t pairs = 0;
  for (int64_t p = position; p <= last; ++p) pairs += p + 1 - first_seen(p, window);
  const int64_t read = last + 1 - first_seen(position, window);
  const int64_t width = args.heads * args.kv.head_dim;
  return {0, read * token_bytes(args.kv), 2 * tokens * width * kFloat, 4 * pairs * width};
}

}  // namespace treadle

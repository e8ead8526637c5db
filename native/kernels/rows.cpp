// Kernels that work on each row for itself: norm, gated activation, quantisation, RoPE.
#include "variant.hpp"

namespace treadle::TREADLE_VARIANT {
namespace {

// The sums of the halves of row r's values, as each kind of weight wants them.
void write_sums(QuantRecord& record, int64_t r, int32_t low, int32_t high) {
  const float scale = record.scale[r];
  record.start[r] = -8 * (low + high);
  record.scaled_sum[r] = scale * static_cast<float>(low + high);
  record.half_start[0][r] = -32 * low;
  record.half_start[1][r] = -32 * high;
  record.half_scaled_sum[0][r] = scale * static_cast<float>(low);
  record.half_scaled_sum[1][r] = scale * static_cast<float>(high);
}

// One block of a row: scale = max|x| / 127, value = round-half-even(x / scale).
void quantise_block(F low, F high, QuantRecord& record, int64_t r) {
  const I magnitude = set1(0x7fffffff);
  // Compared as integers, NaN counts as the largest and reaches the scale.
  const int32_t top_bits =
      max_lanes(max(bit_and(bits(low), magnitude), bit_and(bits(high), magnitude)));
  float top;
  __builtin_memcpy(&top, &top_bits, 4);
  const float scale = top / 127.0f;
  record.scale[r] = scale;
  if (scale == 0.0f) {
    __builtin_memset(record.values[r], 0, kQuantBlock);
    write_sums(record, r, 0, 0);
    return;
  }
  // A subnormal scale is coarse and inf / inf is NaN: the bounds keep every value a valid int8.
  const F bound = set1(127.0f);
  const F divisor = set1(scale);
  const I a = to_int(min(max(div(low, divisor), set1(-127.0f)), bound));
  const I b = to_int(min(max(div(high, divisor), set1(-127.0f)), bound));
  store_low8(record.values[r], a);
  store_low8(record.values[r] + kLanes, b);
  write_sums(record, r, sum_lanes(a), sum_lanes(b));
}

// Writes a row in the forms that `out` keeps; value(i, n) gives columns i to i + 16, of which n are
// real.
template <class Value>
void write_row(const Activations& out, int64_t row, Value value) {
  float* values = out.values + row * out.stride;
  if (!out.keep_records) {
    for (int64_t i = 0; i < out.width; i += kLanes) {
      store(values + i, value(i, out.width - i), out.width - i);
    }
    return;
  }
  const int64_t blocks = out.width / kQuantBlock;
  QuantRecord* records = reinterpret_cast<QuantRecord*>(out.records) + row / kRowTile * blocks;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t i = b * kQuantBlock;
    const F low = value(i, kLanes);
    const F high = value(i + kLanes, kLanes);
    if (out.keep_values) {
      store(values + i, low);
      store(values + i + kLanes, high);
    }
    quantise_block(low, high, records[b], row % kRowTile);
  }
}

F load_upto(const float* p, int64_t n) { return n >= kLanes ? load(p) : load(p, n); }

// 64 partial sums, each over every 64th element, folded in a fixed order.
float sum_of_squares(const float* x, int64_t n) {
  F sums[4] = {zero(), zero(), zero(), zero()};
  for (int64_t i = 0, j = 0; i < n; i += kLanes, j = (j + 1) % 4) {
    const F v = load_upto(x + i, n - i);
    sums[j] = fma(v, v, sums[j]);
  }
  return sum_lanes(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

void rotate_halves(float* head, const float* cos, const float* sin, int64_t pairs) {
  for (int64_t i = 0; i < pairs; i += kLanes) {
    const int64_t n = pairs - i;
    const F c = load_upto(cos + i, n);
    const F s = load_upto(sin + i, n);
    const F a = load_upto(head + i, n);
    const F b = load_upto(head + pairs + i, n);
    store(head + i, fma(a, c, mul(b, sub(zero(), s))), n);
    store(head + pairs + i, fma(b, c, mul(a, s)), n);
  }
}

void rotate_neighbours(float* head, const float* cos, const float* sin, int64_t pairs) {
  for (int64_t i = 0; i < pairs; i += kLanes) {
    const int64_t n = pairs - i;
    const int64_t more = 2 * n > kLanes ? 2 * n - kLanes : 0;
    const F c = load_upto(cos + i, n);
    const F s = load_upto(sin + i, n);
    float* at = head + 2 * i;
    F a;
    F b;
    deinterleave(load_upto(at, 2 * n), load_upto(at + kLanes, more), a, b);
    const F turned_a = fma(a, c, mul(b, sub(zero(), s)));
    const F turned_b = fma(b, c, mul(a, s));
    interleave(turned_a, turned_b, a, b);
    store(at, a, 2 * n);
    store(at + kLanes, b, more);
  }
}

void store_rounded(float* p, F x) { store(p, x); }
void store_rounded(Half* p, F x) { store(p, x); }
// To nearest, ties to even; a NaN keeps a fraction bit.
void store_rounded(Brain* p, F x) {
  const I u = bits(x);
  const I odd = bit_and(shift_right<16>(u), set1(1));
  const I rounded = shift_right<16>(add(u, add(odd, set1(0x7fff))));
  const I nan = bit_or(shift_right<16>(u), set1(0x40));
  store_low16(reinterpret_cast<uint16_t*>(p), select(equal(x, x), rounded, nan));
}

template <class T>
void store_kv(const RopeArgs& a, int64_t token) {
  const KVLayer& kv = a.kv;
  const int64_t slot = a.slots[token];
  const int64_t offset = slot % kv.block_size;
  const float* k = a.qkv + token * a.stride + a.heads * kv.head_dim;
  const float* v = k + kv.kv_heads * kv.head_dim;
  for (int64_t h = 0; h < kv.kv_heads; ++h, k += kv.head_dim, v += kv.head_dim) {
    uint8_t* head = kv.data + slot / kv.block_size * kv.block_bytes + h * kv.head_bytes;
    T* keys = reinterpret_cast<T*>(head);
    T* values = reinterpret_cast<T*>(head + kv.v_offset) + offset * kv.padded_dim;
    T* key_row = keys + offset * kv.padded_dim;
    T* key_column = keys + offset / kLanes * kLanes * kv.head_dim + offset % kLanes;
    for (int64_t d = 0; d < kv.head_dim; d += kLanes) {
      const int64_t n = kv.head_dim - d;
      store_rounded(values + d, load_upto(v + d, n));
      if (!kv.grouped) {
        store_rounded(key_row + d, load_upto(k + d, n));
        continue;
      }
      T lanes[kLanes];
      store_rounded(lanes, load_upto(k + d, n));
      for (int64_t i = 0; i < (n < kLanes ? n : kLanes); ++i) {
        key_column[(d + i) * kLanes] = lanes[i];
      }
    }
  }
}

}  // namespace

void rms_norm(const NormArgs& a, int64_t first_row, int64_t last_row) {
  for (int64_t row = first_row; row < last_row; ++row) {
    const float* x = a.x.values + row * a.x.stride;
    const float mean = sum_of_squares(x, a.x.width) / static_cast<float>(a.x.width);
    const F inverse = set1(1.0f / square_root(mean + a.eps));
    write_row(a.out, row, [&](int64_t i, int64_t n) {
      return mul(mul(load_upto(x + i, n), inverse), load_upto(a.weight + i, n));
    });
  }
}

void gated_silu(const GatedArgs& a, int64_t first_row, int64_t last_row) {
  for (int64_t row = first_row; row < last_row; ++row) {
    const float* gate = a.gate_up.values + row * a.gate_up.stride;
    const float* up = gate + a.out.width;
    write_row(a.out, row, [&](int64_t i, int64_t n) {
      return mul(silu(load_upto(gate + i, n)), load_upto(up + i, n));
    });
  }
}

void quantise(const QuantiseArgs& a, int64_t first_row, int64_t last_row) {
  Activations out = a.x;
  out.keep_values = false;
  for (int64_t row = first_row; row < last_row; ++row) {
    const float* x = a.x.values + row * a.x.stride;
    write_row(out, row, [&](int64_t i, int64_t) { return load(x + i); });
  }
}

void rope_store(const RopeArgs& a, int64_t first_token, int64_t last_token) {
  for (int64_t token = first_token; token < last_token; ++token) {
    const float* cos = a.cos + a.positions[token] * a.pairs;
    const float* sin = a.sin + a.positions[token] * a.pairs;
    float* head = a.qkv + token * a.stride;
    for (int64_t h = 0; h < a.heads + a.kv.kv_heads; ++h, head += a.kv.head_dim) {
      if (a.interleaved) {
        rotate_neighbours(head, cos, sin, a.pairs);
      } else {
        rotate_halves(head, cos, sin, a.pairs);
      }
    }
    switch (a.kv.type) {
      case KVType::kF32:
        store_kv<float>(a, token);
        break;
      case KVType::kF16:
        store_kv<Half>(a, token);
        break;
      case KVType::kBF16:
        store_kv<Brain>(a, token);
        break;
    }
  }
}

}  // namespace treadle::TREADLE_VARIANT

// Quantising activations, one block of 32 columns of a row tile at a time. A row's scale is
// max|x| / 127 and its numbers are round-half-even(x / scale), however many rows there are.
#pragma once

namespace treadle::TREADLE_VARIANT {
namespace {

// Up to so many rows are cheaper one by one than all 16 at once.
constexpr int64_t kFewRows = 2;
// Scales that quotient() divides by; zero it leaves alone.
constexpr float kLeastScale = 0x1p-96f;
constexpr float kLargestScale = 0x1.fffffep127f;

// One block of a tile's rows, before it is quantised.
struct TileBlock {
  alignas(64) float values[kRowTile][kQuantBlock];
};

// Compared as integers, NaN counts as the largest and reaches the scale.
inline I top_bits(F low, F high) {
  const I magnitude = set1(0x7fffffff);
  return max(bit_and(bits(low), magnitude), bit_and(bits(high), magnitude));
}

// Bounded, as a subnormal scale is coarse and inf / inf is NaN.
inline I divided(F x, float scale) {
  return to_int(min(max(div(x, set1(scale)), set1(-127.0f)), set1(127.0f)));
}

inline void quantise_row(F low, F high, int64_t r, QuantRecord& record) {
  const int32_t top = max_lanes(top_bits(low, high));
  float scale;
  __builtin_memcpy(&scale, &top, 4);
  scale /= 127.0f;
  const I a = scale == 0.0f ? set1(0) : divided(low, scale);
  const I b = scale == 0.0f ? set1(0) : divided(high, scale);
  store_low8(record.values[r], a);
  store_low8(record.values[r] + kLanes, b);
  const int32_t low_sum = sum_lanes(a);
  const int32_t high_sum = sum_lanes(b);
  record.scale[r] = scale;
  record.start[r] = -8 * (low_sum + high_sum);
  record.scaled_sum[r] = scale * static_cast<float>(low_sum + high_sum);
  record.half_start[0][r] = -32 * low_sum;
  record.half_start[1][r] = -32 * high_sum;
  record.half_scaled_sum[0][r] = scale * static_cast<float>(low_sum);
  record.half_scaled_sum[1][r] = scale * static_cast<float>(high_sum);
}

// x / scale by its reciprocal, rounded as the division would be: what the first product is off by
// is known exactly. Ties matter where activations come from quantised weights.
inline F quotient(F x, F minus_scale, F reciprocal) {
#if TREADLE_VARIANT_NUMBER >= 2
  const F near = mul(x, reciprocal);
  return fma(fma(near, minus_scale, x), reciprocal, near);
#else
  static_cast<void>(reciprocal);
  return div(sub(zero(), x), minus_scale);
#endif
}

// The sums of all rows at once.
inline void write_sums(F scale, QuantRecord& record) {
  I low;
  I high;
  sum_halves(record.values, low, high);
  const I sum = add(low, high);
  store(record.scale, scale);
  store(record.start, sub(set1(0), shift_left<3>(sum)));
  store(record.scaled_sum, mul(scale, to_float(sum)));
  store(record.half_start[0], sub(set1(0), shift_left<5>(low)));
  store(record.half_start[1], sub(set1(0), shift_left<5>(high)));
  store(record.half_scaled_sum[0], mul(scale, to_float(low)));
  store(record.half_scaled_sum[1], mul(scale, to_float(high)));
}

// The first `rows` rows; what the record has for others is for nobody to read.
inline void quantise_block(const TileBlock& block, int64_t rows, QuantRecord& record) {
  const auto low = [&](int64_t r) { return load(block.values[r]); };
  const auto high = [&](int64_t r) { return load(block.values[r] + kLanes); };
  I tops[kRowTile];
  for (int64_t r = 0; r < kRowTile; ++r) tops[r] = r < rows ? top_bits(low(r), high(r)) : set1(0);
  const F scale = div(from_bits(max_of_rows(tops)), set1(127.0f));
  const Mask some = at_least(scale, set1(kLeastScale));
  alignas(64) float reciprocals[kLanes];
  alignas(64) float minus_scales[kLanes];
  store(reciprocals, select(some, div(set1(1.0f), scale), zero()));
  store(minus_scales, select(some, sub(zero(), scale), set1(-1.0f)));
  for (int64_t r = 0; r < rows; ++r) {
    const F by = set1(reciprocals[r]);
    const F minus_scale = set1(minus_scales[r]);
    store_low8(record.values[r], to_int(quotient(low(r), minus_scale, by)));
    store_low8(record.values[r] + kLanes, to_int(quotient(high(r), minus_scale, by)));
  }
  write_sums(scale, record);
  const uint32_t regular =
      (lane_bits(some) & lane_bits(at_least(set1(kLargestScale), scale))) |
      lane_bits(equal(scale, zero()));
  for (int64_t r = 0; r < rows; ++r) {
    if ((regular >> r & 1) == 0) quantise_row(low(r), high(r), r, record);
  }
}

}  // namespace
}  // namespace treadle::TREADLE_VARIANT

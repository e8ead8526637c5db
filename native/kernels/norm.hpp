// Sums over a row for norms: 64 partial sums, each over every 64th element, folded in a fixed
// order, so that a row has one sum whoever takes it.
#pragma once

namespace treadle::TREADLE_VARIANT {
namespace {

inline F load_upto(const float* p, int64_t n) { return n >= kLanes ? load(p) : load(p, n); }

// add_to(sum, i, left) adds elements i to i + 16, of which `left` are real.
template <class AddTo>
float fold(int64_t n, AddTo add_to) {
  F sums[4] = {zero(), zero(), zero(), zero()};
  for (int64_t i = 0, j = 0; i < n; i += kLanes, j = (j + 1) % 4) {
    sums[j] = add_to(sums[j], i, n - i);
  }
  return sum_lanes(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

// What an RMS norm multiplies a row with.
inline float inverse_rms(const float* x, int64_t n, float eps) {
  const float squares = fold(n, [&](F sum, int64_t i, int64_t left) {
    const F v = load_upto(x + i, left);
    return fma(v, v, sum);
  });
  return 1.0f / square_root(squares / static_cast<float>(n) + eps);
}

// What a layer norm takes off a row, and then multiplies it with.
struct Centred {
  float mean;
  float inverse;
};
inline Centred centre(const float* x, int64_t n, float eps) {
  const float sum = fold(n, [&](F so_far, int64_t i, int64_t left) {
    return add(so_far, load_upto(x + i, left));
  });
  const float mean = sum / static_cast<float>(n);
  const float squares = fold(n, [&](F so_far, int64_t i, int64_t left) {
    const F apart = select(first_lanes(left), sub(load_upto(x + i, left), set1(mean)), zero());
    return fma(apart, apart, so_far);
  });
  return {mean, 1.0f / square_root(squares / static_cast<float>(n) + eps)};
}

}  // namespace
}  // namespace treadle::TREADLE_VARIANT

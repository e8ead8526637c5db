// How a finished sum of a matrix product reaches its output; one order of operations for all types.
#pragma once

namespace treadle::TREADLE_VARIANT {
namespace {

// `column` counts within the part.
inline void store_output(const LinearArgs& a, int64_t column, int64_t row, F sum) {
  const int64_t n = a.part.n - column;
  const int64_t at = a.part.column + column;
  float* out = a.out + row * a.out_stride + at;
  if (n >= kLanes) {
    if (a.bias != nullptr) sum = add(sum, load(a.bias + at));
    if (a.accumulate) sum = add(load(out), sum);
    store(out, sum);
  } else {
    if (a.bias != nullptr) sum = add(sum, load(a.bias + at, n));
    if (a.accumulate) sum = add(load(out, n), sum);
    store(out, sum, n);
  }
}

}  // namespace
}  // namespace treadle::TREADLE_VARIANT

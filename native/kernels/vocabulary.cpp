// Passes over one row of logits, for sampling and log-probabilities. Sums are made per piece of the
// vocabulary, 16 lanes each, so that a row has one result whatever else is sampled.
#include "variant.hpp"

namespace treadle::TREADLE_VARIANT {
namespace {

// n values at p, the rest of the vector filled up.
F load_filled(const float* p, int64_t n, F fill) {
  return n >= kLanes ? load(p) : select(first_lanes(n), load(p, n), fill);
}

template <class Value>
float piece_sum(int64_t first, int64_t last, Value value) {
  F sum = zero();
  for (int64_t i = first; i < last; i += kLanes) sum = add(sum, value(i, last - i));
  return sum_lanes(sum);
}

template <class Value>
void piece_sums(int64_t n, float* sums, Value value) {
  for (int64_t piece = 0; piece * kVocabularyPiece < n; ++piece) {
    const int64_t first = piece * kVocabularyPiece;
    const int64_t last = first + kVocabularyPiece < n ? first + kVocabularyPiece : n;
    sums[piece] = piece_sum(first, last, value);
  }
}

}  // namespace

float largest(const float* x, int64_t n) {
  const F lowest = set1(-__builtin_inff());
  F top = lowest;
  // A NaN as the first operand leaves the second.
  for (int64_t i = 0; i < n; i += kLanes) top = max(load_filled(x + i, n - i, lowest), top);
  return max_lanes(top);
}

int64_t first_equal(const float* x, int64_t n, float value) {
  const F wanted = set1(value);
  for (int64_t i = 0; i < n; i += kLanes) {
    const F v = load_filled(x + i, n - i, set1(__builtin_nanf("")));
    const uint32_t found = lane_bits(equal(v, wanted));
    if (found != 0) return i + __builtin_ctz(found);
  }
  return n;
}

void exponentials(const float* x, int64_t n, float max, float temperature, float* weights,
                  float* sums) {
  const F top = set1(max);
  const F divisor = set1(temperature);
  piece_sums(n, sums, [&](int64_t i, int64_t left) {
    const F scaled = div(sub(load_filled(x + i, left, set1(-__builtin_inff())), top), divisor);
    const F weight = exponential(scaled);
    const F real = select(equal(weight, weight), weight, zero());
    if (weights != nullptr) store(weights + i, real, left);
    return real;
  });
}

void sums_at_least(const float* weights, int64_t n, float floor, float* sums) {
  const F low = set1(floor);
  piece_sums(n, sums, [&](int64_t i, int64_t left) {
    const F weight = load_filled(weights + i, left, zero());
    return select(at_least(weight, low), weight, zero());
  });
}

int64_t collect_at_least(const float* weights, int64_t n, float floor, int32_t* ids) {
  const F low = set1(floor);
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += kLanes) {
    const F weight = load_filled(weights + i, n - i, set1(-1.0f));
    for (uint32_t found = lane_bits(at_least(weight, low)); found != 0; found &= found - 1) {
      ids[count++] = static_cast<int32_t>(i + __builtin_ctz(found));
    }
  }
  return count;
}

int64_t next_above(const float* x, int64_t first, int64_t n, float floor) {
  const F low = set1(floor);
  for (int64_t i = first; i < n; i += kLanes) {
    const F v = load_filled(x + i, n - i, low);
    const uint32_t found = lane_bits(greater(v, low));
    if (found != 0) return i + __builtin_ctz(found);
  }
  return n;
}

}  // namespace treadle::TREADLE_VARIANT

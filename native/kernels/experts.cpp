// The two ends of a mixture of experts: the choice per row, and the weighted sum of the results.
#include "variant.hpp"

namespace treadle::TREADLE_VARIANT {
namespace {

constexpr float kChosen = -1.0f;

// Softmax of one row; a NaN weighs nothing.
void soften_row(const float* logits, int64_t n, float* p) {
  const F top = set1(largest(logits, n));
  F sum = zero();
  for (int64_t i = 0; i < n; i += kLanes) {
    const Mask real = first_lanes(n - i);
    const F weight = exponential(sub(load(logits + i, n - i), top));
    const F kept = select(real, select(equal(weight, weight), weight, zero()), zero());
    store(p + i, kept);
    sum = add(sum, kept);
  }
  const F total = set1(sum_lanes(sum));
  for (int64_t i = 0; i < n; i += kLanes) store(p + i, div(load(p + i), total));
}

int64_t next_choice(const float* p, int64_t n) {
  const float top = largest(p, n);
  if (top >= 0.0f) return first_equal(p, n, top);
  // Logits without a maximum leave no number to go by.
  int64_t expert = 0;
  while (p[expert] == kChosen) ++expert;
  return expert;
}

}  // namespace

void route(const RouteArgs& a, int64_t first_row, int64_t last_row, float* scratch) {
  for (int64_t row = first_row; row < last_row; ++row) {
    soften_row(a.logits + row * a.stride, a.experts, scratch);
    int32_t* chosen = a.chosen + row * a.top_k;
    float* weights = a.weights + row * a.top_k;
    for (int64_t count = 0; count < a.top_k; ++count) {
      const int32_t expert = static_cast<int32_t>(next_choice(scratch, a.experts));
      int64_t at = count;
      for (; at > 0 && chosen[at - 1] > expert; --at) {
        chosen[at] = chosen[at - 1];
        weights[at] = weights[at - 1];
      }
      chosen[at] = expert;
      weights[at] = scratch[expert];
      scratch[expert] = kChosen;
    }
    if (!a.renormalise) continue;
    float sum = 0.0f;
    for (int64_t i = 0; i < a.top_k; ++i) sum += weights[i];
    for (int64_t i = 0; i < a.top_k; ++i) weights[i] /= sum;
  }
}

void mix(const MixArgs& a, int64_t first_row, int64_t last_row) {
  for (int64_t row = first_row; row < last_row; ++row) {
    float* out = a.out + row * a.out_stride;
    for (int64_t choice = row * a.top_k; choice < (row + 1) * a.top_k; ++choice) {
      const int64_t place = a.places[choice];
      if (place < a.first || place >= a.last) continue;
      const float* result = a.results + (place - a.first) * a.results_stride;
      const F weight = set1(a.weights[choice]);
      for (int64_t i = 0; i < a.width; i += kLanes) {
        const int64_t n = a.width - i;
        store(out + i, fma(weight, load(result + i, n), load(out + i, n)), n);
      }
    }
  }
}

}  // namespace treadle::TREADLE_VARIANT

// Products with f32, f16 and bf16 weights: per output one accumulator, fed in K order.
#include "variant.hpp"

#include "output.hpp"

namespace treadle::TREADLE_VARIANT {
namespace {

constexpr int kMaxRows = 6;
constexpr int kWidePanels = 4;
// Where the registers are few, several rows meet one panel at a time.
constexpr int kRowPanels = kAccumulators >= kMaxRows * kWidePanels ? kWidePanels : 1;
// How far ahead weights are fetched that only one row or two wait for.
constexpr int64_t kPrefetchBytes = 2048;

// Steps of K that a panel of the type holds side by side.
template <WeightType kType>
constexpr int kTogether = kType == WeightType::kBF16 ? 2 : 1;

// 16 columns of so many steps of K.
template <WeightType kType>
[[gnu::always_inline]] inline void load_steps(const uint8_t* from, F (&steps)[kTogether<kType>]) {
  if constexpr (kType == WeightType::kF32) {
    steps[0] = load(reinterpret_cast<const float*>(from));
  } else if constexpr (kType == WeightType::kF16) {
    steps[0] = load(reinterpret_cast<const Half*>(from));
  } else {
    const I pair = load(reinterpret_cast<const int32_t*>(from));
    steps[0] = from_bits(shift_left<16>(pair));
    steps[1] = from_bits(bit_and(pair, set1(static_cast<int32_t>(0xffff0000))));
  }
}

template <WeightType kType>
constexpr int64_t kStepBytes = panel_bytes(kType, kTogether<kType>);

[[gnu::always_inline]] inline void fetch_ahead(const uint8_t* at) {
  __builtin_prefetch(at + kPrefetchBytes, 0, 2);
}

#if TREADLE_VARIANT_NUMBER >= 4
#include "float_bf16.hpp"
#endif

// R rows against P panels. Sums that do not depend on each other hide the latency of the adds.
template <WeightType kType, int R, int P>
void float_tile(const LinearArgs& a, int64_t panel, int64_t row) {
  constexpr int kSteps = kTogether<kType>;
  const uint8_t* w = a.part.data + panel * a.part.panel_bytes;
  const float* x = a.x.values + row * a.x.stride;
  F sums[R][P];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) sums[r][p] = zero();
  }
  for (int64_t k = 0; k < a.part.k; k += kSteps, w += kStepBytes<kType>) {
    F columns[P][kSteps];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const uint8_t* at = w + p * a.part.panel_bytes;
      if (R == 1) fetch_ahead(at);
      load_steps<kType>(at, columns[p]);
    }
#pragma GCC unroll 2
    for (int step = 0; step < kSteps; ++step) {
      if (step > 0 && k + step == a.part.k) break;
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const F value = set1(x[r * a.x.stride + k + step]);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) sums[r][p] = fma(value, columns[p][step], sums[r][p]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) store_output(a, (panel + p) * kLanes, row + r, sums[r][p]);
  }
}

template <WeightType kType, int R, int P>
void multiply(const LinearArgs& a, int64_t panel, int64_t row) {
#if TREADLE_VARIANT_NUMBER >= 4
  if constexpr (kType == WeightType::kBF16) return brain_tile<R, P>(a, panel, row);
#endif
  float_tile<kType, R, P>(a, panel, row);
}

template <WeightType kType, int P>
void float_rows(const LinearArgs& a, int64_t panel, int64_t first_row, int64_t last_row) {
  for (int64_t row = first_row; row < last_row;) {
    const int64_t left = last_row - row;
    if (left >= 6) {
      multiply<kType, 6, P>(a, panel, row);
      row += 6;
    } else if (left >= 4) {
      multiply<kType, 4, P>(a, panel, row);
      row += 4;
    } else if (left >= 2) {
      multiply<kType, 2, P>(a, panel, row);
      row += 2;
    } else {
      multiply<kType, 1, P>(a, panel, row);
      row += 1;
    }
  }
}

}  // namespace

template <WeightType kType>
void linear_float(const LinearArgs& a, int64_t first_panel, int64_t last_panel, int64_t first_row,
                  int64_t last_row) {
  int64_t panel = first_panel;
  for (; panel + kWidePanels <= last_panel; panel += kWidePanels) {
    if (last_row - first_row == 1) {
      multiply<kType, 1, kWidePanels>(a, panel, first_row);
      continue;
    }
    for (int64_t p = panel; p < panel + kWidePanels; p += kRowPanels) {
      float_rows<kType, kRowPanels>(a, p, first_row, last_row);
    }
  }
  for (; panel < last_panel; ++panel) {
    float_rows<kType, 1>(a, panel, first_row, last_row);
  }
}

template void linear_float<WeightType::kF32>(const LinearArgs&, int64_t, int64_t, int64_t, int64_t);
template void linear_float<WeightType::kF16>(const LinearArgs&, int64_t, int64_t, int64_t, int64_t);
template void linear_float<WeightType::kBF16>(const LinearArgs&, int64_t, int64_t, int64_t,
                                              int64_t);

}  // namespace treadle::TREADLE_VARIANT

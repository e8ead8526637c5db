// Products with f32, f16 and bf16 weights: per output one accumulator, fed in K order.
#include "variant.hpp"

#include "output.hpp"

namespace treadle::TREADLE_VARIANT {
namespace {

template <WeightType kType>
struct Stored;
template <>
struct Stored<WeightType::kF32> {
  using Value = float;
};
template <>
struct Stored<WeightType::kF16> {
  using Value = Half;
};
template <>
struct Stored<WeightType::kBF16> {
  using Value = Brain;
};

constexpr int kMaxRows = 6;
constexpr int kWidePanels = 4;
// Where the registers are few, several rows meet one panel at a time.
constexpr int kRowPanels = kAccumulators >= kMaxRows * kWidePanels ? kWidePanels : 1;
constexpr int64_t kPrefetchBytes = 1024;

// R rows against P panels. Sums that do not depend on each other hide the latency of the adds.
template <class W, int R, int P>
void float_tile(const LinearArgs& a, int64_t panel, int64_t row) {
  const W* w = reinterpret_cast<const W*>(a.part.data + panel * a.part.panel_bytes);
  const int64_t panel_values = a.part.k * kLanes;
  const float* x = a.x.values + row * a.x.stride;
  F sums[R][P];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) sums[r][p] = zero();
  }
  for (int64_t k = 0; k < a.part.k; ++k) {
    F column[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const W* at = w + p * panel_values + k * kLanes;
      if (R == 1) __builtin_prefetch(reinterpret_cast<const char*>(at) + kPrefetchBytes);
      column[p] = load(at);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F value = set1(x[r * a.x.stride + k]);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) sums[r][p] = fma(value, column[p], sums[r][p]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) store_output(a, (panel + p) * kLanes, row + r, sums[r][p]);
  }
}

template <class W, int P>
void float_rows(const LinearArgs& a, int64_t panel, int64_t first_row, int64_t last_row) {
  for (int64_t row = first_row; row < last_row;) {
    const int64_t left = last_row - row;
    if (left >= 6) {
      float_tile<W, 6, P>(a, panel, row);
      row += 6;
    } else if (left >= 4) {
      float_tile<W, 4, P>(a, panel, row);
      row += 4;
    } else if (left >= 2) {
      float_tile<W, 2, P>(a, panel, row);
      row += 2;
    } else {
      float_tile<W, 1, P>(a, panel, row);
      row += 1;
    }
  }
}

}  // namespace

template <WeightType kType>
void linear_float(const LinearArgs& a, int64_t first_panel, int64_t last_panel, int64_t first_row,
                  int64_t last_row) {
  using W = typename Stored<kType>::Value;
  int64_t panel = first_panel;
  for (; panel + kWidePanels <= last_panel; panel += kWidePanels) {
    if (last_row - first_row == 1) {
      float_tile<W, 1, kWidePanels>(a, panel, first_row);
      continue;
    }
    for (int64_t p = panel; p < panel + kWidePanels; p += kRowPanels) {
      float_rows<W, kRowPanels>(a, p, first_row, last_row);
    }
  }
  for (; panel < last_panel; ++panel) {
    float_rows<W, 1>(a, panel, first_row, last_row);
  }
}

template void linear_float<WeightType::kF32>(const LinearArgs&, int64_t, int64_t, int64_t, int64_t);
template void linear_float<WeightType::kF16>(const LinearArgs&, int64_t, int64_t, int64_t, int64_t);
template void linear_float<WeightType::kBF16>(const LinearArgs&, int64_t, int64_t, int64_t,
                                              int64_t);

}  // namespace treadle::TREADLE_VARIANT

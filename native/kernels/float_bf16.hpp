// bf16 weights where the processor multiplies bf16: activations are rounded to bf16, to the nearest
// and ties to even, products of pairs are added to float32 sums. Included inside the variant's
// namespace.

// Values of K that are rounded before they are multiplied.
constexpr int64_t kRounded = 1024;

// Some values of K of R rows, in pairs.
template <int R>
struct Rounded {
  alignas(64) int32_t pairs[R][kRounded / 2];
};

[[gnu::always_inline]] inline __m512bh as_pairs(__m512i x) {
  return reinterpret_cast<__m512bh&>(x);
}

[[gnu::always_inline]] inline void store_pairs(int32_t* to, F low, F high) {
  const __m512bh rounded = _mm512_cvtne2ps_pbh(high.v, low.v);
  _mm512_store_si512(to, reinterpret_cast<const __m512i&>(rounded));
}

// The first n of a row's values from x on; zeros after them.
inline void round_row(const float* x, int64_t n, int32_t* pairs) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    store_pairs(pairs + i / 2, load(x + i), load(x + i + kLanes));
  }
  if (i == n) return;
  const int64_t left = n - i;
  const F high = left > kLanes ? load(x + i + kLanes, left - kLanes) : zero();
  store_pairs(pairs + i / 2, load(x + i, left), high);
}

// R rows against P panels. Sums that do not depend on each other hide the latency of the adds.
template <int R, int P>
void brain_tile(const LinearArgs& a, int64_t panel, int64_t row) {
  const uint8_t* w = a.part.data + panel * a.part.panel_bytes;
  Rounded<R> x;
  F sums[R][P];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) sums[r][p] = zero();
  }
  for (int64_t first = 0; first < a.part.k; first += kRounded) {
    const int64_t count = a.part.k - first < kRounded ? a.part.k - first : kRounded;
    for (int r = 0; r < R; ++r) {
      round_row(a.x.values + (row + r) * a.x.stride + first, count, x.pairs[r]);
    }
    for (int64_t pair = 0; 2 * pair < count; ++pair, w += kStepBytes<WeightType::kBF16>) {
      __m512bh columns[P];
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const uint8_t* at = w + p * a.part.panel_bytes;
        if (R <= 2) fetch_ahead(at);
        columns[p] = as_pairs(_mm512_loadu_si512(at));
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m512bh value = as_pairs(_mm512_set1_epi32(x.pairs[r][pair]));
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
          sums[r][p].v = _mm512_dpbf16_ps(sums[r][p].v, value, columns[p]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) store_output(a, (panel + p) * kLanes, row + r, sums[r][p]);
  }
}

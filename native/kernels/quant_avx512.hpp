// Dot products of quantised panels with VNNI. Included inside the variant's namespace.

// 32 values of K of 16 columns: 8 registers of 4 values per column, unsigned.
template <WeightType kType>
inline void unpack(const uint8_t* values, __m512i (&w)[8]) {
  if constexpr (kType == WeightType::kQ8_0) {
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) w[g] = _mm512_loadu_si512(values + 64 * g);
  } else {
    const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) {
      const __m512i both = _mm512_loadu_si512(values + 64 * g);
      w[g] = _mm512_and_si512(both, low);
      w[g + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
  }
}

// Where an integer sum starts so that the offset of the stored weights is taken off.
template <WeightType kType>
inline __m512i start_of(const QuantRecord& x, int r) {
  if constexpr (kType == WeightType::kQ4_1) return _mm512_setzero_si512();
  const __m512i start = _mm512_set1_epi32(x.start[r]);
  return kType == WeightType::kQ8_0 ? _mm512_slli_epi32(start, 4) : start;
}

inline __m512i broadcast_four(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return _mm512_set1_epi32(four);
}

// The dot products of G rows at once, and of one row in two halves: chains that do not depend on
// each other hide the latency of a step.
template <WeightType kType, int G>
inline void dot_rows(const __m512i (&w)[8], const QuantRecord& x, int r, __m512i (&sums)[G]) {
#pragma GCC unroll 4
  for (int i = 0; i < G; ++i) sums[i] = start_of<kType>(x, r + i);
  if constexpr (G == 1) {
    __m512i other = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int g = 0; g < 8; g += 2) {
      sums[0] = _mm512_dpbusd_epi32(sums[0], w[g], broadcast_four(x.values[r] + 4 * g));
      other = _mm512_dpbusd_epi32(other, w[g + 1], broadcast_four(x.values[r] + 4 * g + 4));
    }
    sums[0] = _mm512_add_epi32(sums[0], other);
    return;
  }
#pragma GCC unroll 8
  for (int g = 0; g < 8; ++g) {
#pragma GCC unroll 4
    for (int i = 0; i < G; ++i) {
      sums[i] = _mm512_dpbusd_epi32(sums[i], w[g], broadcast_four(x.values[r + i] + 4 * g));
    }
  }
}

// Rows from kFirst on, four at a time.
template <WeightType kType, int kFirst, int R>
inline void quant_steps(const __m512i (&w)[8], F scale, F minimum, const QuantRecord& x,
                        F (&acc)[R]) {
  constexpr int kTogether = R - kFirst < 4 ? R - kFirst : 4;
  __m512i sums[kTogether];
  dot_rows<kType, kTogether>(w, x, kFirst, sums);
#pragma GCC unroll 4
  for (int i = 0; i < kTogether; ++i) {
    const int r = kFirst + i;
    acc[r] = fma({_mm512_cvtepi32_ps(sums[i])}, mul(scale, set1(x.scale[r])), acc[r]);
    if constexpr (kType == WeightType::kQ4_1) {
      acc[r] = fma(minimum, set1(x.scaled_sum[r]), acc[r]);
    }
  }
  if constexpr (kFirst + kTogether < R) {
    quant_steps<kType, kFirst + kTogether>(w, scale, minimum, x, acc);
  }
}

template <WeightType kType, int R>
inline void quant_tile(const QuantPanel& panel, const QuantRecord* x, int64_t blocks, bool stream,
                       F (&acc)[R]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) acc[r] = zero();
  for (int64_t b = 0; b < blocks; ++b) {
    if (stream) prefetch_block<kType>(panel.values, b);
    __m512i w[8];
    unpack<kType>(panel.values + b * quant_plane_bytes(kType, 1), w);
    const F scale = load(panel.scales + b * kLanes);
    F minimum = zero();
    if constexpr (kType == WeightType::kQ4_1) minimum = load(panel.minima + b * kLanes);
    quant_steps<kType, 0>(w, scale, minimum, x[b], acc);
  }
}

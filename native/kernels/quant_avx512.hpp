// Dot products of quantised panels with VNNI. Included inside the variant's namespace.

// 16 signed bytes.
[[gnu::always_inline]] inline I load_bytes(const uint8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}

#include "quant_scales.hpp"

// Bits move up within their bytes; what comes in from a neighbour is for the caller to mask.
template <int kUp>
[[gnu::always_inline]] inline __m512i shift_up(__m512i x) {
  if constexpr (kUp > 0) return _mm512_slli_epi16(x, kUp);
  if constexpr (kUp < 0) return _mm512_srli_epi16(x, -kUp);
  return x;
}

template <WeightType kType>
[[gnu::always_inline]] inline __m512i table_lanes() {
  constexpr QuantFormat kIs = kFormat<kType>;
  alignas(16) int8_t numbers[16];
  for (int i = 0; i < 16; ++i) numbers[i] = static_cast<int8_t>(kIs.table[i] + kIs.offset);
  return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(numbers)));
}

// Values 4g to 4g + 3 of K of 16 columns, unsigned.
template <WeightType kType, int kGroup>
[[gnu::always_inline]] inline __m512i unpack_four(const uint8_t* low, const uint8_t* high) {
  constexpr QuantFormat kIs = kFormat<kType>;
  constexpr int kLow = kIs.low_bits;
  constexpr int kHigh = kIs.high_bits;
  __m512i w = _mm512_loadu_si512(low + 64 * (kGroup % kLow));
  if constexpr (kLow < 8) {
    w = _mm512_and_si512(shift_up<-(kGroup / kLow * kLow)>(w), _mm512_set1_epi8((1 << kLow) - 1));
  }
  if constexpr (kHigh > 0) {
    const __m512i h = _mm512_loadu_si512(high + 64 * (kGroup % kHigh));
    const __m512i mask = _mm512_set1_epi8(((1 << kHigh) - 1) << kLow);
    constexpr int kUp = kLow - kGroup / kHigh * kHigh;
    w = _mm512_or_si512(w, _mm512_and_si512(shift_up<kUp>(h), mask));
  }
  if constexpr (kIs.table != nullptr) w = _mm512_shuffle_epi8(table_lanes<kType>(), w);
  return w;
}

template <WeightType kType>
[[gnu::always_inline]] inline void unpack(const uint8_t* low, const uint8_t* high, __m512i (&w)[8]) {
  w[0] = unpack_four<kType, 0>(low, high);
  w[1] = unpack_four<kType, 1>(low, high);
  w[2] = unpack_four<kType, 2>(low, high);
  w[3] = unpack_four<kType, 3>(low, high);
  w[4] = unpack_four<kType, 4>(low, high);
  w[5] = unpack_four<kType, 5>(low, high);
  w[6] = unpack_four<kType, 6>(low, high);
  w[7] = unpack_four<kType, 7>(low, high);
}

// Where an integer sum starts so that the offset of the stored weights is taken off.
template <WeightType kType>
[[gnu::always_inline]] inline __m512i start_of(const QuantRecord& x, int half, int r) {
  constexpr int kOffset = kFormat<kType>.offset;
  if constexpr (kOffset == 0) {
    return _mm512_setzero_si512();
  } else if constexpr (kGroups<kType> == 2) {
    const __m512i start = _mm512_set1_epi32(x.half_start[half][r]);
    static_assert(kOffset == 32 || kOffset == 4);
    return kOffset == 32 ? start : _mm512_srai_epi32(start, 3);
  } else {
    const __m512i start = _mm512_set1_epi32(x.start[r]);
    static_assert(kOffset == 8 || kOffset == 16 || kOffset == 128);
    return kOffset == 8 ? start : _mm512_slli_epi32(start, kOffset == 16 ? 1 : 4);
  }
}

[[gnu::always_inline]] inline __m512i broadcast_four(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return _mm512_set1_epi32(four);
}

// The dot products of one group with G rows at once, and of one row in two halves: chains that do
// not depend on each other hide the latency of a step.
template <WeightType kType, int kGroup, int G>
[[gnu::always_inline]] inline void dot_rows(const __m512i (&w)[8], const QuantRecord& x, int r, __m512i (&sums)[G]) {
  constexpr int kFours = 8 / kGroups<kType>;
  constexpr int kFirst = kGroup * kFours;
#pragma GCC unroll 4
  for (int i = 0; i < G; ++i) sums[i] = start_of<kType>(x, kGroup, r + i);
  if constexpr (G == 1) {
    __m512i other = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int g = kFirst; g < kFirst + kFours; g += 2) {
      sums[0] = _mm512_dpbusd_epi32(sums[0], w[g], broadcast_four(x.values[r] + 4 * g));
      other = _mm512_dpbusd_epi32(other, w[g + 1], broadcast_four(x.values[r] + 4 * g + 4));
    }
    sums[0] = _mm512_add_epi32(sums[0], other);
    return;
  }
#pragma GCC unroll 8
  for (int g = kFirst; g < kFirst + kFours; ++g) {
#pragma GCC unroll 4
    for (int i = 0; i < G; ++i) {
      sums[i] = _mm512_dpbusd_epi32(sums[i], w[g], broadcast_four(x.values[r + i] + 4 * g));
    }
  }
}

// One group, G rows from `first` on.
template <WeightType kType, int kGroup, int G>
[[gnu::always_inline]] inline void group_step(const __m512i (&w)[8], const BlockScales<kType>& scales,
                       const QuantRecord& x, int first, F* acc) {
  __m512i sums[G];
  dot_rows<kType, kGroup>(w, x, first, sums);
#pragma GCC unroll 4
  for (int i = 0; i < G; ++i) {
    const int r = first + i;
    acc[r] = fma({_mm512_cvtepi32_ps(sums[i])}, mul(scales.scale[kGroup], set1(x.scale[r])),
                 acc[r]);
    if constexpr (kFormat<kType>.minima) {
      const float sum = kGroups<kType> == 2 ? x.half_scaled_sum[kGroup][r] : x.scaled_sum[r];
      acc[r] = fma(scales.minimum[kGroup], set1(sum), acc[r]);
    }
  }
}

// R rows from kFirst on, four at a time.
template <WeightType kType, int kFirst, int R>
[[gnu::always_inline]] inline void quant_steps(const __m512i (&w)[8], const BlockScales<kType>& scales,
                        const QuantRecord& x, F* acc) {
  constexpr int kTogether = R < 4 ? R : 4;
  group_step<kType, 0, kTogether>(w, scales, x, kFirst, acc);
  if constexpr (kGroups<kType> == 2) group_step<kType, 1, kTogether>(w, scales, x, kFirst, acc);
  if constexpr (kTogether < R) {
    quant_steps<kType, kFirst + kTogether, R - kTogether>(w, scales, x, acc);
  }
}

template <WeightType kType, int R>
[[gnu::always_inline]] inline void quant_tile(const QuantPanel& panel, const QuantRecord* x, int64_t blocks, bool stream,
                       F (&acc)[R]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) acc[r] = zero();
  for (int64_t b = 0; b < blocks; ++b) {
    if (stream) prefetch_block<kType>(panel.data, b);
    const BlockPlaces at = places_of(kType, panel.layout, b);
    __m512i w[8];
    unpack<kType>(panel.data + at.low, panel.data + at.high, w);
    quant_steps<kType, 0, R>(w, read_scales<kType>(panel.data, at), x[b], acc);
  }
}

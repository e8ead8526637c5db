// Dot products of quantised panels with 8-bit multiplies. Included inside the variant's namespace.

// 16 signed bytes.
[[gnu::always_inline]] inline I load_bytes(const uint8_t* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
}

#include "quant_scales.hpp"

// Numbers of eight bits are multiplied signed, |w| times x with w's sign; smaller ones as stored.
template <WeightType kType>
constexpr bool kSigned = kLargest<kType> > 127;

// Groups of four values whose products may be added in 16 bits.
template <WeightType kType>
constexpr int kRun = kLargest<kType> * 127 * 16 < 32768 && kGroups<kType> == 1 ? 8
                     : kLargest<kType> * 127 * 8 < 32768                       ? 4
                                                                              : 2;

// Eight columns, four values of K each.
[[gnu::always_inline]] inline __m256i load_columns(const uint8_t* four) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(four));
}

[[gnu::always_inline]] inline __m256i broadcast_four(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return _mm256_set1_epi32(four);
}

// Bits move up within their bytes; what comes in from a neighbour is for the caller to mask.
template <int kUp>
[[gnu::always_inline]] inline __m256i shift_up(__m256i x) {
  if constexpr (kUp > 0) return _mm256_slli_epi16(x, kUp);
  if constexpr (kUp < 0) return _mm256_srli_epi16(x, -kUp);
  return x;
}

template <WeightType kType>
[[gnu::always_inline]] inline __m256i table_lanes() {
  constexpr QuantFormat kIs = kFormat<kType>;
  alignas(16) int8_t numbers[16];
  for (int i = 0; i < 16; ++i) {
    numbers[i] = static_cast<int8_t>(kIs.table[i] + (kSigned<kType> ? 0 : kIs.offset));
  }
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(numbers)));
}

// Values 4g to 4g + 3 of K of eight columns.
template <WeightType kType, int kGroup>
[[gnu::always_inline]] inline __m256i unpack_four(const uint8_t* low, const uint8_t* high) {
  constexpr QuantFormat kIs = kFormat<kType>;
  constexpr int kLow = kIs.low_bits;
  constexpr int kHigh = kIs.high_bits;
  __m256i w = load_columns(low + 64 * (kGroup % kLow));
  if constexpr (kLow == 8) return _mm256_xor_si256(w, _mm256_set1_epi8(-128));
  w = _mm256_and_si256(shift_up<-(kGroup / kLow * kLow)>(w), _mm256_set1_epi8((1 << kLow) - 1));
  if constexpr (kHigh > 0) {
    const __m256i h = load_columns(high + 64 * (kGroup % kHigh));
    const __m256i mask = _mm256_set1_epi8(((1 << kHigh) - 1) << kLow);
    constexpr int kUp = kLow - kGroup / kHigh * kHigh;
    w = _mm256_or_si256(w, _mm256_and_si256(shift_up<kUp>(h), mask));
  }
  if constexpr (kIs.table != nullptr) w = _mm256_shuffle_epi8(table_lanes<kType>(), w);
  return w;
}

template <WeightType kType>
[[gnu::always_inline]] inline void unpack(const uint8_t* low, const uint8_t* high, __m256i (&w)[8]) {
  w[0] = unpack_four<kType, 0>(low, high);
  w[1] = unpack_four<kType, 1>(low, high);
  w[2] = unpack_four<kType, 2>(low, high);
  w[3] = unpack_four<kType, 3>(low, high);
  w[4] = unpack_four<kType, 4>(low, high);
  w[5] = unpack_four<kType, 5>(low, high);
  w[6] = unpack_four<kType, 6>(low, high);
  w[7] = unpack_four<kType, 7>(low, high);
}

// kRun groups of four from kFirst on. A pair of products is at most 2 * 127 * kLargest, and a run
// of them stays below 2^15.
template <WeightType kType, int kFirst>
[[gnu::always_inline]] inline __m256i dot_run(const __m256i (&w)[8], const int8_t* x) {
  __m256i even = _mm256_maddubs_epi16(w[kFirst], broadcast_four(x + 4 * kFirst));
  __m256i odd = _mm256_maddubs_epi16(w[kFirst + 1], broadcast_four(x + 4 * kFirst + 4));
#pragma GCC unroll 4
  for (int g = kFirst + 2; g < kFirst + kRun<kType>; g += 2) {
    even = _mm256_add_epi16(even, _mm256_maddubs_epi16(w[g], broadcast_four(x + 4 * g)));
    odd = _mm256_add_epi16(odd, _mm256_maddubs_epi16(w[g + 1], broadcast_four(x + 4 * g + 4)));
  }
  return _mm256_madd_epi16(_mm256_add_epi16(even, odd), _mm256_set1_epi16(1));
}

template <WeightType kType, int kFirst, int kLast>
[[gnu::always_inline]] inline __m256i dot_unsigned(const __m256i (&w)[8], const int8_t* x) {
  const __m256i sum = dot_run<kType, kFirst>(w, x);
  if constexpr (kFirst + kRun<kType> == kLast) {
    return sum;
  } else {
    return _mm256_add_epi32(sum, dot_unsigned<kType, kFirst + kRun<kType>, kLast>(w, x));
  }
}

// A pair of products is at most 2 * 128 * 127 = 32512, which 16 bits hold; each is widened before
// it is added.
[[gnu::always_inline]] inline __m256i dot_signed(const __m256i (&w)[8], const int8_t* x) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int g = 0; g < 8; ++g) {
    const __m256i signed_x = _mm256_sign_epi8(broadcast_four(x + 4 * g), w[g]);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w[g]), signed_x);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
  }
  return sum;
}

// The dot product of a group, the offset of stored weights taken off.
template <WeightType kType, int kGroup>
[[gnu::always_inline]] inline __m256i dot(const __m256i (&w)[8], const QuantRecord& x, int r) {
  constexpr int kOffset = kFormat<kType>.offset;
  if constexpr (kSigned<kType>) {
    return dot_signed(w, x.values[r]);
  } else {
    constexpr int kFours = 8 / kGroups<kType>;
    const __m256i sum =
        dot_unsigned<kType, kGroup * kFours, (kGroup + 1) * kFours>(w, x.values[r]);
    if constexpr (kOffset == 0) return sum;
    const int32_t start = kGroups<kType> == 2 ? x.half_start[kGroup][r] / (32 / kOffset)
                                              : x.start[r] * (kOffset / 8);
    return _mm256_add_epi32(sum, _mm256_set1_epi32(start));
  }
}

template <WeightType kType, int kGroup, int R>
[[gnu::always_inline]] inline void group_step(const __m256i (&w)[8], __m256 scale, __m256 minimum, const QuantRecord& x,
                       __m256 (&acc)[R]) {
  for (int r = 0; r < R; ++r) {
    const __m256i sum = dot<kType, kGroup>(w, x, r);
    acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum),
                             _mm256_mul_ps(scale, _mm256_set1_ps(x.scale[r])), acc[r]);
    if constexpr (kFormat<kType>.minima) {
      const float total = kGroups<kType> == 2 ? x.half_scaled_sum[kGroup][r] : x.scaled_sum[r];
      acc[r] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(total), acc[r]);
    }
  }
}

// Half a panel at a time: its eight registers of weights stay, the sums of many rows do not.
template <WeightType kType, int R>
[[gnu::always_inline]] inline void quant_tile(const QuantPanel& panel, const QuantRecord* x, int64_t blocks, bool stream,
                       F (&acc)[R]) {
  __m256 low[R];
  __m256 high[R];
  for (int r = 0; r < R; ++r) low[r] = high[r] = _mm256_setzero_ps();
  for (int64_t b = 0; b < blocks; ++b) {
    if (stream) prefetch_block<kType>(panel.data, b);
    const BlockPlaces at = places_of(kType, panel.layout, b);
    const BlockScales<kType> s = read_scales<kType>(panel.data, at);
    __m256i w[8];
    unpack<kType>(panel.data + at.low, panel.data + at.high, w);
    group_step<kType, 0>(w, s.scale[0].lo, s.minimum[0].lo, x[b], low);
    if constexpr (kGroups<kType> == 2) {
      group_step<kType, 1>(w, s.scale[1].lo, s.minimum[1].lo, x[b], low);
    }
    unpack<kType>(panel.data + at.low + 32, panel.data + at.high + 32, w);
    group_step<kType, 0>(w, s.scale[0].hi, s.minimum[0].hi, x[b], high);
    if constexpr (kGroups<kType> == 2) {
      group_step<kType, 1>(w, s.scale[1].hi, s.minimum[1].hi, x[b], high);
    }
  }
  for (int r = 0; r < R; ++r) acc[r] = {low[r], high[r]};
}

// Sixteen lanes in one AVX-512 register, for both variants that have it. The same functions, and
// lane by lane the same results, as in the other variants.
#pragma once

#include <immintrin.h>

#include "../types.hpp"

namespace treadle::TREADLE_VARIANT {
namespace {

struct F {
  __m512 v;
};
struct I {
  __m512i v;
};
struct Mask {
  __mmask16 v;
};
struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

// Accumulators of 16 lanes that fit the registers next to operands.
constexpr int kAccumulators = 24;

inline __mmask16 tail(int64_t n) {
  return static_cast<__mmask16>(n >= kLanes ? 0xffff : (1u << n) - 1);
}

inline F zero() { return {_mm512_setzero_ps()}; }
inline F set1(float x) { return {_mm512_set1_ps(x)}; }
inline I set1(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline F load(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(tail(n), p)}; }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x.v); }
inline I load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store(int32_t* p, I x) { _mm512_storeu_si512(p, x.v); }
inline void store(float* p, F x, int64_t n) { _mm512_mask_storeu_ps(p, tail(n), x.v); }
inline F load(const Half* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline F load(const Brain* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
inline void store(Half* p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

inline F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// The second operand where either is NaN.
inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
inline I bits(F a) { return {_mm512_castps_si512(a.v)}; }
inline F from_bits(I a) { return {_mm512_castsi512_ps(a.v)}; }
inline I add(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I sub(I a, I b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline I bit_and(I a, I b) { return {_mm512_and_si512(a.v, b.v)}; }
inline I bit_or(I a, I b) { return {_mm512_or_si512(a.v, b.v)}; }
inline I max(I a, I b) { return {_mm512_max_epi32(a.v, b.v)}; }
template <int N>
inline I shift_left(I a) {
  return {_mm512_slli_epi32(a.v, N)};
}
// Arithmetic.
template <int N>
inline I shift_right(I a) {
  return {_mm512_srai_epi32(a.v, N)};
}
inline F to_float(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
// To the nearest, ties to even.
inline I to_int(F a) { return {_mm512_cvtps_epi32(a.v)}; }

inline Mask greater(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
inline Mask at_least(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
inline Mask equal(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
// The first n lanes.
inline Mask first_lanes(int64_t n) { return {tail(n)}; }
inline F select(Mask m, F yes, F no) { return {_mm512_mask_blend_ps(m.v, no.v, yes.v)}; }
inline I select(Mask m, I yes, I no) { return {_mm512_mask_blend_epi32(m.v, no.v, yes.v)}; }
// Bit i is lane i.
inline uint32_t lane_bits(Mask m) { return m.v; }

// The low 16 bits of each lane.
inline void store_low16(uint16_t* p, I x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x.v));
}
// The low 8 bits of each lane.
inline void store_low8(int8_t* p, I x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v));
}

// Even and odd elements of the 32 floats (a, b).
inline void deinterleave(F a, F b, F& even, F& odd) {
  const __m512i evens =
      _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  even.v = _mm512_permutex2var_ps(a.v, evens, b.v);
  odd.v = _mm512_permutex2var_ps(a.v, _mm512_add_epi32(evens, _mm512_set1_epi32(1)), b.v);
}
inline void interleave(F even, F odd, F& a, F& b) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  a.v = _mm512_permutex2var_ps(even.v, low, odd.v);
  b.v = _mm512_permutex2var_ps(even.v, _mm512_add_epi32(low, _mm512_set1_epi32(8)), odd.v);
}
// First 4 x 4 blocks within the quarters of four rows, then the quarters themselves.
inline void transpose(F (&rows)[16]) {
  __m512 fours[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512d ab_low = _mm512_castps_pd(_mm512_unpacklo_ps(rows[i].v, rows[i + 1].v));
    const __m512d ab_high = _mm512_castps_pd(_mm512_unpackhi_ps(rows[i].v, rows[i + 1].v));
    const __m512d cd_low = _mm512_castps_pd(_mm512_unpacklo_ps(rows[i + 2].v, rows[i + 3].v));
    const __m512d cd_high = _mm512_castps_pd(_mm512_unpackhi_ps(rows[i + 2].v, rows[i + 3].v));
    fours[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_low, cd_low));
    fours[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_low, cd_low));
    fours[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_high, cd_high));
    fours[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_high, cd_high));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 a = _mm512_shuffle_f32x4(fours[i], fours[i + 4], 0x88);
    const __m512 b = _mm512_shuffle_f32x4(fours[i + 8], fours[i + 12], 0x88);
    const __m512 c = _mm512_shuffle_f32x4(fours[i], fours[i + 4], 0xdd);
    const __m512 d = _mm512_shuffle_f32x4(fours[i + 8], fours[i + 12], 0xdd);
    rows[i].v = _mm512_shuffle_f32x4(a, b, 0x88);
    rows[i + 8].v = _mm512_shuffle_f32x4(a, b, 0xdd);
    rows[i + 4].v = _mm512_shuffle_f32x4(c, d, 0x88);
    rows[i + 12].v = _mm512_shuffle_f32x4(c, d, 0xdd);
  }
}

// Lanes i and i + 8, then i and i + 4, then i + 2, then i + 1: one order in every variant.
inline float sum_lanes(F a) {
  const __m256 eight =
      _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float max_lanes(F a) { return _mm512_reduce_max_ps(a.v); }
inline int32_t sum_lanes(I a) { return _mm512_reduce_add_epi32(a.v); }
inline int32_t max_lanes(I a) { return _mm512_reduce_max_epi32(a.v); }

// Folds four rows of four lanes, in each quarter of the vectors; lane r of a quarter is row r's.
template <class Fold>
[[gnu::always_inline]] inline __m512i fold_quarters(const __m512i (&rows)[4], Fold fold) {
  const __m512i low = fold(_mm512_unpacklo_epi64(rows[0], rows[1]),
                           _mm512_unpackhi_epi64(rows[0], rows[1]));
  const __m512i high = fold(_mm512_unpacklo_epi64(rows[2], rows[3]),
                            _mm512_unpackhi_epi64(rows[2], rows[3]));
  const __m512 a = _mm512_castsi512_ps(low);
  const __m512 b = _mm512_castsi512_ps(high);
  return fold(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
              _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)));
}
// Lane r is the largest lane of row r.
inline I max_of_rows(const I (&rows)[16]) {
  const auto larger = [](__m512i a, __m512i b) { return _mm512_max_epi32(a, b); };
  const auto halves = [&](int i, int j) {
    return larger(_mm512_inserti64x4(rows[i].v, _mm512_castsi512_si256(rows[j].v), 1),
                  _mm512_shuffle_i64x2(rows[i].v, rows[j].v, 0xee));
  };
  __m512i quarters[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i a = halves(i, i + 4);
    const __m512i b = halves(i + 8, i + 12);
    quarters[i] = larger(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  }
  return {fold_quarters(quarters, larger)};
}
// Lane r is the sum of the first, or the last, 16 numbers of row r.
inline void sum_halves(const int8_t (&rows)[16][32], I& low, I& high) {
  const auto sum = [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); };
  __m512i even_odd[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    // Of two rows each, in quarters: both halves of the one, then of the other.
    __m512i pairs[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      pairs[j] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1),
                                     _mm512_loadu_si512(rows[8 * i + 2 * j]));
    }
    even_odd[i] = fold_quarters(pairs, sum);
  }
  const __m512i lows =
      _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27);
  low.v = _mm512_permutex2var_epi32(even_odd[0], lows, even_odd[1]);
  high.v = _mm512_permutex2var_epi32(
      even_odd[0], _mm512_add_epi32(lows, _mm512_set1_epi32(4)), even_odd[1]);
}
inline float square_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

}  // namespace
}  // namespace treadle::TREADLE_VARIANT

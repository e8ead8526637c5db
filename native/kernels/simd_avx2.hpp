// Sixteen lanes in two AVX2 registers. The same functions, and lane by lane the same results, as in
// the other variants.
#pragma once

#include <immintrin.h>

#include "../types.hpp"

namespace treadle::avx2 {
namespace {

struct F {
  __m256 lo, hi;
};
struct I {
  __m256i lo, hi;
};
struct Mask {
  __m256 lo, hi;
};
struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

// Accumulators of 16 lanes that fit the registers next to operands.
constexpr int kAccumulators = 6;

inline Mask first_lanes(int64_t n) {
  const __m256i count = _mm256_set1_epi32(static_cast<int32_t>(n < kLanes ? n : kLanes));
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lane)),
          _mm256_castsi256_ps(
              _mm256_cmpgt_epi32(count, _mm256_add_epi32(lane, _mm256_set1_epi32(8))))};
}

inline F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline I set1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline F load(const float* p, int64_t n) {
  const Mask m = first_lanes(n);
  return {_mm256_maskload_ps(p, _mm256_castps_si256(m.lo)),
          _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.hi))};
}
inline void store(float* p, F x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
inline I load(const int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
inline void store(int32_t* p, I x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.hi);
}
inline void store(float* p, F x, int64_t n) {
  const Mask m = first_lanes(n);
  _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), x.lo);
  _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), x.hi);
}
inline __m128i load_eight(const uint16_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline F load(const Half* p) {
  return {_mm256_cvtph_ps(load_eight(&p->bits)), _mm256_cvtph_ps(load_eight(&p[8].bits))};
}
inline __m256 widen_brain(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_eight(p)), 16));
}
inline F load(const Brain* p) { return {widen_brain(&p->bits), widen_brain(&p[8].bits)}; }
inline void store(Half* p, F x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.lo, kNearest));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.hi, kNearest));
}

inline F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline F fma(F a, F b, F c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// The second operand where either is NaN.
inline F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline I bits(F a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
inline F from_bits(I a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
inline I add(I a, I b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
inline I sub(I a, I b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
inline I bit_and(I a, I b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
inline I bit_or(I a, I b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
inline I max(I a, I b) { return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)}; }
template <int N>
inline I shift_left(I a) {
  return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)};
}
// Arithmetic.
template <int N>
inline I shift_right(I a) {
  return {_mm256_srai_epi32(a.lo, N), _mm256_srai_epi32(a.hi, N)};
}
inline F to_float(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
// To the nearest, ties to even.
inline I to_int(F a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }

inline Mask greater(F a, F b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ)};
}
inline Mask at_least(F a, F b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ)};
}
inline Mask equal(F a, F b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)};
}
inline F select(Mask m, F yes, F no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}
inline I select(Mask m, I yes, I no) { return bits(select(m, from_bits(yes), from_bits(no))); }
// Bit i is lane i.
inline uint32_t lane_bits(Mask m) {
  return static_cast<uint32_t>(_mm256_movemask_ps(m.lo)) |
         static_cast<uint32_t>(_mm256_movemask_ps(m.hi)) << 8;
}

// 16 lanes of at most 16 significant bits, in order.
inline __m256i pack16(I x) {
  const __m256i low = _mm256_set1_epi32(0xffff);
  const __m256i mixed =
      _mm256_packus_epi32(_mm256_and_si256(x.lo, low), _mm256_and_si256(x.hi, low));
  return _mm256_permute4x64_epi64(mixed, 0xd8);
}
// The low 16 bits of each lane.
inline void store_low16(uint16_t* p, I x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), pack16(x));
}
// The low 8 bits of each lane.
inline void store_low8(int8_t* p, I x) {
  const __m256i words = _mm256_and_si256(pack16(x), _mm256_set1_epi16(0xff));
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

inline __m256 in_order(__m256 quarters) {
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(quarters), 0xd8));
}
// Even and odd elements of the 32 floats (a, b).
inline void deinterleave(F a, F b, F& even, F& odd) {
  even = {in_order(_mm256_shuffle_ps(a.lo, a.hi, 0x88)),
          in_order(_mm256_shuffle_ps(b.lo, b.hi, 0x88))};
  odd = {in_order(_mm256_shuffle_ps(a.lo, a.hi, 0xdd)),
         in_order(_mm256_shuffle_ps(b.lo, b.hi, 0xdd))};
}
inline void interleave_eight(__m256 even, __m256 odd, F& x) {
  const __m256 low = _mm256_unpacklo_ps(even, odd);
  const __m256 high = _mm256_unpackhi_ps(even, odd);
  x = {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}
inline void interleave(F even, F odd, F& a, F& b) {
  interleave_eight(even.lo, odd.lo, a);
  interleave_eight(even.hi, odd.hi, b);
}

inline void transpose_eight(__m256 (&r)[8]) {
  __m256 fours[8];
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    const __m256d ab_low = _mm256_castps_pd(_mm256_unpacklo_ps(r[i], r[i + 1]));
    const __m256d ab_high = _mm256_castps_pd(_mm256_unpackhi_ps(r[i], r[i + 1]));
    const __m256d cd_low = _mm256_castps_pd(_mm256_unpacklo_ps(r[i + 2], r[i + 3]));
    const __m256d cd_high = _mm256_castps_pd(_mm256_unpackhi_ps(r[i + 2], r[i + 3]));
    fours[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab_low, cd_low));
    fours[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab_low, cd_low));
    fours[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab_high, cd_high));
    fours[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab_high, cd_high));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}
inline void transpose(F (&rows)[16]) {
  __m256 top_left[8], top_right[8], bottom_left[8], bottom_right[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    top_left[i] = rows[i].lo;
    top_right[i] = rows[i].hi;
    bottom_left[i] = rows[i + 8].lo;
    bottom_right[i] = rows[i + 8].hi;
  }
  transpose_eight(top_left);
  transpose_eight(top_right);
  transpose_eight(bottom_left);
  transpose_eight(bottom_right);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    rows[i] = {top_left[i], bottom_left[i]};
    rows[i + 8] = {top_right[i], bottom_right[i]};
  }
}

// Lanes i and i + 8, then i and i + 4, then i + 2, then i + 1: one order in every variant.
inline float sum_lanes(F a) {
  const __m256 eight = _mm256_add_ps(a.lo, a.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float max_lanes(F a) {
  const __m256 eight = _mm256_max_ps(a.lo, a.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline __m128i fold_max(__m128i a) {
  a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4e));
  return _mm_max_epi32(a, _mm_shuffle_epi32(a, 0xb1));
}
inline __m128i fold_sum(__m128i a) {
  a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
  return _mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1));
}
inline int32_t sum_lanes(I a) {
  const __m256i s = _mm256_add_epi32(a.lo, a.hi);
  return _mm_cvtsi128_si32(
      fold_sum(_mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1))));
}
inline int32_t max_lanes(I a) {
  const __m256i m = _mm256_max_epi32(a.lo, a.hi);
  return _mm_cvtsi128_si32(
      fold_max(_mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1))));
}
// Lane r is the largest lane of row r.
inline I max_of_rows(const I (&rows)[16]) {
  alignas(32) int32_t tops[16];
  for (int r = 0; r < 16; ++r) tops[r] = max_lanes(rows[r]);
  const __m256i* at = reinterpret_cast<const __m256i*>(tops);
  return {_mm256_load_si256(at), _mm256_load_si256(at + 1)};
}
// The sums of the halves of four rows: of the first halves, then of the last.
inline __m256i sum_halves_of_four(const int8_t (*rows)[32]) {
  __m256i fours[4];
  for (int r = 0; r < 4; ++r) {
    const __m256i row = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[r]));
    fours[r] = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), row),
                                 _mm256_set1_epi16(1));
  }
  return _mm256_hadd_epi32(_mm256_hadd_epi32(fours[0], fours[1]),
                           _mm256_hadd_epi32(fours[2], fours[3]));
}
// Lane r is the sum of the first, or the last, 16 numbers of row r.
inline void sum_halves(const int8_t (&rows)[16][32], I& low, I& high) {
  const __m256i a = sum_halves_of_four(rows);
  const __m256i b = sum_halves_of_four(rows + 4);
  const __m256i c = sum_halves_of_four(rows + 8);
  const __m256i d = sum_halves_of_four(rows + 12);
  low = {_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(c, d, 0x20)};
  high = {_mm256_permute2x128_si256(a, b, 0x31), _mm256_permute2x128_si256(c, d, 0x31)};
}
inline float square_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

}  // namespace
}  // namespace treadle::avx2

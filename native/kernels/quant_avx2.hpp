// Dot products of quantised panels with 8-bit multiplies. Included inside the variant's namespace.

// Eight columns, four values of K each.
inline __m256i load_columns(const uint8_t* group) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group));
}

inline __m256i broadcast_four(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return _mm256_set1_epi32(four);
}

// Eight columns of a block of nibbles. A pair of products is at most 2 * 15 * 127 = 3810, so the
// eight pairs of a block stay below 2^15 and need no widening in between.
inline void unpack_nibbles(const uint8_t* values, __m256i (&w)[8]) {
  const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {
    const __m256i both = load_columns(values + 64 * g);
    w[g] = _mm256_and_si256(both, low);
    w[g + 4] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
  }
}

inline __m256i dot_nibbles(const __m256i (&w)[8], const int8_t* x) {
  __m256i even = _mm256_maddubs_epi16(w[0], broadcast_four(x));
  __m256i odd = _mm256_maddubs_epi16(w[1], broadcast_four(x + 4));
#pragma GCC unroll 4
  for (int g = 2; g < 8; g += 2) {
    even = _mm256_add_epi16(even, _mm256_maddubs_epi16(w[g], broadcast_four(x + 4 * g)));
    odd = _mm256_add_epi16(odd, _mm256_maddubs_epi16(w[g + 1], broadcast_four(x + 4 * g + 4)));
  }
  return _mm256_madd_epi16(_mm256_add_epi16(even, odd), _mm256_set1_epi16(1));
}

// Eight columns of a block of signed bytes: |w| times x with w's sign. A pair of products is at
// most 2 * 128 * 127 = 32512, which 16 bits hold; each is widened before it is added.
inline void unpack_bytes(const uint8_t* values, __m256i (&w)[8]) {
#pragma GCC unroll 8
  for (int g = 0; g < 8; ++g) {
    w[g] = _mm256_xor_si256(load_columns(values + 64 * g), _mm256_set1_epi8(-128));
  }
}

inline __m256i dot_bytes(const __m256i (&w)[8], const int8_t* x) {
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

// The block's part of the sums of eight columns, for R rows.
template <WeightType kType, int R>
inline void quant_step(const uint8_t* values, const Half* scales, const Half* minima,
                       const QuantRecord& x, __m256 (&acc)[R]) {
  __m256i w[8];
  if constexpr (kType == WeightType::kQ8_0) {
    unpack_bytes(values, w);
  } else {
    unpack_nibbles(values, w);
  }
  const __m256 scale = _mm256_cvtph_ps(load_eight(&scales->bits));
  for (int r = 0; r < R; ++r) {
    __m256i sum;
    if constexpr (kType == WeightType::kQ8_0) {
      sum = dot_bytes(w, x.values[r]);
    } else {
      sum = dot_nibbles(w, x.values[r]);
    }
    if constexpr (kType == WeightType::kQ4_0) {
      sum = _mm256_add_epi32(sum, _mm256_set1_epi32(x.start[r]));
    }
    acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum),
                             _mm256_mul_ps(scale, _mm256_set1_ps(x.scale[r])), acc[r]);
    if constexpr (kType == WeightType::kQ4_1) {
      const __m256 minimum = _mm256_cvtph_ps(load_eight(&minima->bits));
      acc[r] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(x.scaled_sum[r]), acc[r]);
    }
  }
}

// Half a panel at a time: its eight registers of weights stay, the sums of many rows do not.
template <WeightType kType, int R>
inline void quant_tile(const QuantPanel& panel, const QuantRecord* x, int64_t blocks, bool stream,
                       F (&acc)[R]) {
  __m256 low[R];
  __m256 high[R];
  for (int r = 0; r < R; ++r) low[r] = high[r] = _mm256_setzero_ps();
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t* values = panel.values + b * quant_plane_bytes(kType, 1);
    if (stream) prefetch_block<kType>(panel.values, b);
    const Half* scales = panel.scales + b * kLanes;
    const Half* minima = panel.minima + b * kLanes;
    quant_step<kType, R>(values, scales, minima, x[b], low);
    quant_step<kType, R>(values + 32, scales + 8, minima + 8, x[b], high);
  }
  for (int r = 0; r < R; ++r) acc[r] = {low[r], high[r]};
}

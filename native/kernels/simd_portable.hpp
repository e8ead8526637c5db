// Sixteen lanes in plain C++: four vectors of the compiler's own kind, which become SSE2 or NEON.
//
// Without a fused multiply-add in the baseline instruction set, fma() rounds twice; every kernel of
// this variant does so alike.
#pragma once

#include "../types.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace treadle::portable {
namespace {

typedef float Float4 __attribute__((vector_size(16)));
typedef int32_t Int4 __attribute__((vector_size(16)));

struct F {
  Float4 part[4];
};
struct I {
  Int4 part[4];
};
struct Mask {
  Int4 part[4];
};
struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

// Accumulators of 16 lanes that fit the registers next to operands.
constexpr int kAccumulators = 4;

#define TREADLE_EACH(expression)   \
  for (int i = 0; i < 4; ++i) {    \
    r.part[i] = (expression);      \
  }                                \
  return r

inline F zero() { return F{}; }
inline F set1(float x) {
  F r;
  TREADLE_EACH((Float4{x, x, x, x}));
}
inline I set1(int32_t x) {
  I r;
  TREADLE_EACH((Int4{x, x, x, x}));
}
inline F load(const float* p) {
  F r;
  __builtin_memcpy(&r, p, sizeof r);
  return r;
}
inline F load(const float* p, int64_t n) {
  F r{};
  __builtin_memcpy(&r, p, sizeof(float) * (n < kLanes ? n : kLanes));
  return r;
}
inline void store(float* p, F x) { __builtin_memcpy(p, &x, sizeof x); }
inline I load(const int32_t* p) {
  I r;
  __builtin_memcpy(&r, p, sizeof r);
  return r;
}
inline void store(int32_t* p, I x) { __builtin_memcpy(p, &x, sizeof x); }
inline void store(float* p, F x, int64_t n) {
  __builtin_memcpy(p, &x, sizeof(float) * (n < kLanes ? n : kLanes));
}
inline F add(F a, F b) {
  F r;
  TREADLE_EACH(a.part[i] + b.part[i]);
}
inline F sub(F a, F b) {
  F r;
  TREADLE_EACH(a.part[i] - b.part[i]);
}
inline F mul(F a, F b) {
  F r;
  TREADLE_EACH(a.part[i] * b.part[i]);
}
inline F div(F a, F b) {
  F r;
  TREADLE_EACH(a.part[i] / b.part[i]);
}
inline F fma(F a, F b, F c) {
  F r;
#if defined(__aarch64__)
  TREADLE_EACH((Float4)vfmaq_f32((float32x4_t)c.part[i], (float32x4_t)a.part[i],
                                 (float32x4_t)b.part[i]));
#else
  TREADLE_EACH(a.part[i] * b.part[i] + c.part[i]);
#endif
}
// The second operand where either is NaN, as in x86.
inline F max(F a, F b) {
  F r;
  TREADLE_EACH(a.part[i] > b.part[i] ? a.part[i] : b.part[i]);
}
inline F min(F a, F b) {
  F r;
  TREADLE_EACH(a.part[i] < b.part[i] ? a.part[i] : b.part[i]);
}
inline I bits(F a) {
  I r;
  TREADLE_EACH((Int4)a.part[i]);
}
inline F from_bits(I a) {
  F r;
  TREADLE_EACH((Float4)a.part[i]);
}
inline I add(I a, I b) {
  I r;
  TREADLE_EACH(a.part[i] + b.part[i]);
}
inline I sub(I a, I b) {
  I r;
  TREADLE_EACH(a.part[i] - b.part[i]);
}
inline I bit_and(I a, I b) {
  I r;
  TREADLE_EACH(a.part[i] & b.part[i]);
}
inline I bit_or(I a, I b) {
  I r;
  TREADLE_EACH(a.part[i] | b.part[i]);
}
inline I max(I a, I b) {
  I r;
  TREADLE_EACH(a.part[i] > b.part[i] ? a.part[i] : b.part[i]);
}
template <int N>
inline I shift_left(I a) {
  I r;
  TREADLE_EACH(a.part[i] << N);
}
// Arithmetic.
template <int N>
inline I shift_right(I a) {
  I r;
  TREADLE_EACH(a.part[i] >> N);
}
inline F to_float(I a) {
  F r;
  TREADLE_EACH(__builtin_convertvector(a.part[i], Float4));
}
// To the nearest, ties to even; |a| must be below 2^22: adding 1.5 * 2^23 leaves no fraction bits.
inline I to_int(F a) {
  const F shifter = set1(12582912.0f);
  return sub(bits(add(a, shifter)), bits(shifter));
}
inline Mask greater(F a, F b) {
  Mask r;
  TREADLE_EACH(a.part[i] > b.part[i]);
}
inline Mask at_least(F a, F b) {
  Mask r;
  TREADLE_EACH(a.part[i] >= b.part[i]);
}
inline Mask equal(F a, F b) {
  Mask r;
  TREADLE_EACH(a.part[i] == b.part[i]);
}
// The first n lanes.
inline Mask first_lanes(int64_t n) {
  Mask r;
  for (int32_t i = 0; i < 4; ++i) {
    const int32_t m = n < kLanes ? static_cast<int32_t>(n) : 16;
    r.part[i] = Int4{4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3} < Int4{m, m, m, m};
  }
  return r;
}
inline F select(Mask m, F yes, F no) {
  F r;
  TREADLE_EACH((Float4)((m.part[i] & (Int4)yes.part[i]) | (~m.part[i] & (Int4)no.part[i])));
}
inline I select(Mask m, I yes, I no) {
  I r;
  TREADLE_EACH((m.part[i] & yes.part[i]) | (~m.part[i] & no.part[i]));
}
// Bit i is lane i.
inline uint32_t lane_bits(Mask m) {
  uint32_t r = 0;
  for (int i = 0; i < 16; ++i) {
    r |= (m.part[i / 4][i % 4] & 1u) << i;
  }
  return r;
}

inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t magnitude = h & 0x7fff;
  uint32_t u;
  if (magnitude >= 0x7c00) {
    u = 0x7f800000 | ((magnitude & 0x3ff) << 13);
  } else if (magnitude >= 0x0400) {
    u = (magnitude << 13) + 0x38000000;
  } else {
    const float tiny = static_cast<float>(magnitude) * 0x1p-24f;
    __builtin_memcpy(&u, &tiny, 4);
  }
  u |= sign;
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
inline uint16_t float_to_half(float f) {
  uint32_t u;
  __builtin_memcpy(&u, &f, 4);
  const uint32_t sign = (u >> 16) & 0x8000;
  u &= 0x7fffffff;
  if (u > 0x7f800000) {
    return static_cast<uint16_t>(sign | 0x7e00 | ((u >> 13) & 0x3ff));
  }
  if (u >= 0x477ff000) {
    return static_cast<uint16_t>(sign | 0x7c00);
  }
  if (u < 0x38800000) {
    // Adding 0.5 puts the last bit of a subnormal half at the last bit of the sum.
    __builtin_memcpy(&f, &u, 4);
    f += 0.5f;
    __builtin_memcpy(&u, &f, 4);
    return static_cast<uint16_t>(sign | (u - 0x3f000000));
  }
  u += 0xfff + ((u >> 13) & 1);
  return static_cast<uint16_t>(sign | ((u - 0x38000000) >> 13));
}

inline F load(const Half* p) {
  F r;
  for (int i = 0; i < 16; ++i) {
    r.part[i / 4][i % 4] = half_to_float(p[i].bits);
  }
  return r;
}
inline F load(const Brain* p) {
  I r;
  for (int i = 0; i < 16; ++i) {
    r.part[i / 4][i % 4] = static_cast<int32_t>(static_cast<uint32_t>(p[i].bits) << 16);
  }
  return from_bits(r);
}
inline void store(Half* p, F x) {
  for (int i = 0; i < 16; ++i) {
    p[i].bits = float_to_half(x.part[i / 4][i % 4]);
  }
}
// The low 16 bits of each lane.
inline void store_low16(uint16_t* p, I x) {
  for (int i = 0; i < 16; ++i) {
    p[i] = static_cast<uint16_t>(x.part[i / 4][i % 4]);
  }
}
// The low 8 bits of each lane.
inline void store_low8(int8_t* p, I x) {
  for (int i = 0; i < 16; ++i) {
    p[i] = static_cast<int8_t>(x.part[i / 4][i % 4]);
  }
}

// Even and odd elements of the 32 floats (a, b).
inline void deinterleave(F a, F b, F& even, F& odd) {
  for (int i = 0; i < 8; ++i) {
    even.part[i / 4][i % 4] = a.part[i / 2][2 * i % 4];
    odd.part[i / 4][i % 4] = a.part[i / 2][2 * i % 4 + 1];
    even.part[2 + i / 4][i % 4] = b.part[i / 2][2 * i % 4];
    odd.part[2 + i / 4][i % 4] = b.part[i / 2][2 * i % 4 + 1];
  }
}
inline void interleave(F even, F odd, F& a, F& b) {
  for (int i = 0; i < 8; ++i) {
    a.part[i / 2][2 * i % 4] = even.part[i / 4][i % 4];
    a.part[i / 2][2 * i % 4 + 1] = odd.part[i / 4][i % 4];
    b.part[i / 2][2 * i % 4] = even.part[2 + i / 4][i % 4];
    b.part[i / 2][2 * i % 4 + 1] = odd.part[2 + i / 4][i % 4];
  }
}
inline void transpose(F (&rows)[16]) {
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < r; ++c) {
      const float x = rows[r].part[c / 4][c % 4];
      rows[r].part[c / 4][c % 4] = rows[c].part[r / 4][r % 4];
      rows[c].part[r / 4][r % 4] = x;
    }
  }
}

// Lanes i and i + 8, then i and i + 4, then i + 2, then i + 1: one order in every variant.
inline float sum_lanes(F a) {
  const Float4 eight_low = a.part[0] + a.part[2];
  const Float4 eight_high = a.part[1] + a.part[3];
  const Float4 four = eight_low + eight_high;
  return (four[0] + four[2]) + (four[1] + four[3]);
}
inline float max_lanes(F a) {
  float r = a.part[0][0];
  for (int i = 1; i < 16; ++i) {
    const float x = a.part[i / 4][i % 4];
    r = x > r ? x : r;
  }
  return r;
}
inline int32_t sum_lanes(I a) {
  const Int4 s = a.part[0] + a.part[1] + a.part[2] + a.part[3];
  return s[0] + s[1] + s[2] + s[3];
}
inline int32_t max_lanes(I a) {
  int32_t r = a.part[0][0];
  for (int i = 1; i < 16; ++i) {
    const int32_t x = a.part[i / 4][i % 4];
    r = x > r ? x : r;
  }
  return r;
}
// Lane r is the largest lane of row r.
inline I max_of_rows(const I (&rows)[16]) {
  I r;
  for (int i = 0; i < 16; ++i) r.part[i / 4][i % 4] = max_lanes(rows[i]);
  return r;
}
// Lane r is the sum of the first, or the last, 16 numbers of row r.
inline void sum_halves(const int8_t (&rows)[16][32], I& low, I& high) {
  for (int r = 0; r < 16; ++r) {
    int32_t sums[2] = {0, 0};
    for (int i = 0; i < 32; ++i) sums[i / 16] += rows[r][i];
    low.part[r / 4][r % 4] = sums[0];
    high.part[r / 4][r % 4] = sums[1];
  }
}
inline float square_root(float x) { return __builtin_sqrtf(x); }

#undef TREADLE_EACH

}  // namespace
}  // namespace treadle::portable

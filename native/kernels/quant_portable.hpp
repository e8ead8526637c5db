// Dot products of quantised panels in plain C++. Included inside the variant's namespace.

typedef uint8_t Byte8 __attribute__((vector_size(8)));
typedef int16_t Short8 __attribute__((vector_size(16)));

// 16 signed bytes.
inline I load_bytes(const uint8_t* p) {
  typedef int8_t Signed4 __attribute__((vector_size(4)));
  I read;
  for (int i = 0; i < 4; ++i) {
    Signed4 four;
    __builtin_memcpy(&four, p + 4 * i, 4);
    read.part[i] = __builtin_convertvector(four, Int4);
  }
  return read;
}

#include "quant_scales.hpp"

// Vectors of one group of four values of K: two columns each.
constexpr int kPairs = 8;

// Numbers of eight bits are multiplied signed, smaller ones as stored.
template <WeightType kType>
constexpr bool kSigned = kLargest<kType> > 127;

// Adds kBits bits of each number of a block, times 2^kUp.
template <int kBits, int kUp>
inline void unpack_bits(const uint8_t* plane, Short8 (&w)[8][kPairs]) {
  constexpr int16_t kMask = (1 << kBits) - 1;
  for (int r = 0; r < kBits; ++r) {
    for (int p = 0; p < kPairs; ++p) {
      Byte8 bytes;
      __builtin_memcpy(&bytes, plane + 64 * r + 8 * p, 8);
      const Short8 wide = __builtin_convertvector(bytes, Short8);
      for (int g = r; g < 8; g += kBits) {
        Short8 number = wide >> (g - r);
        if (g + kBits < 8) number &= kMask;
        w[g][p] = kUp == 0 ? number : w[g][p] | number << kUp;
      }
    }
  }
}

// One block of a panel, widened, in the panel's order.
template <WeightType kType>
inline void unpack(const uint8_t* low, const uint8_t* high, Short8 (&w)[8][kPairs]) {
  constexpr QuantFormat kIs = kFormat<kType>;
  constexpr int16_t kOffset = kSigned<kType> ? 0 : kIs.offset;
  unpack_bits<kIs.low_bits, 0>(low, w);
  if constexpr (kIs.high_bits > 0) unpack_bits<kIs.high_bits, kIs.low_bits>(high, w);
  for (int g = 0; g < 8; ++g) {
    for (int p = 0; p < kPairs; ++p) {
      if constexpr (kIs.table != nullptr) {
        for (int i = 0; i < 8; ++i) {
          w[g][p][i] = static_cast<int16_t>(kIs.table[w[g][p][i]] + kOffset);
        }
      } else if constexpr (kSigned<kType>) {
        w[g][p] -= static_cast<int16_t>(kIs.offset);
      }
    }
  }
}

// Sums of lanes 2i and 2i + 1.
inline Int4 add_neighbours(Short8 a) {
  const Int4 both = (Int4)a;
  return ((both << 16) >> 16) + (both >> 16);
}
inline Int4 add_neighbours(Int4 a, Int4 b) {
  return Int4{a[0], a[2], b[0], b[2]} + Int4{a[1], a[3], b[1], b[3]};
}

// The dot product of one group. A lane's product of bytes is at most 128 * 127, so 16 bits hold
// one; they hold the eight products of a block with numbers to 31, the four of a group with 63.
template <WeightType kType>
inline I dot(const Short8 (&w)[8][kPairs], const int8_t* x, int group) {
  constexpr int kFours = 8 / kGroups<kType>;
  static_assert(kSigned<kType> || kLargest<kType> * 127 * kFours < 32768);
  Int4 sums[kPairs] = {};
  Short8 run[kPairs] = {};
  for (int g = group * kFours; g < (group + 1) * kFours; ++g) {
    const int8_t* v = x + 4 * g;
    const Short8 four = {v[0], v[1], v[2], v[3], v[0], v[1], v[2], v[3]};
    for (int p = 0; p < kPairs; ++p) {
      if constexpr (kSigned<kType>) {
        sums[p] += add_neighbours(w[g][p] * four);
      } else {
        run[p] += w[g][p] * four;
      }
    }
  }
  I sum;
  for (int i = 0; i < 4; ++i) {
    if constexpr (!kSigned<kType>) {
      sums[2 * i] = add_neighbours(run[2 * i]);
      sums[2 * i + 1] = add_neighbours(run[2 * i + 1]);
    }
    sum.part[i] = add_neighbours(sums[2 * i], sums[2 * i + 1]);
  }
  return sum;
}

// What a dot product with stored weights has too much, negative.
template <WeightType kType>
inline int32_t start_of(const QuantRecord& x, int group, int r) {
  constexpr int kOffset = kFormat<kType>.offset;
  if constexpr (kSigned<kType> || kOffset == 0) return 0;
  if constexpr (kGroups<kType> == 2) return x.half_start[group][r] / 32 * kOffset;
  return x.start[r] / 8 * kOffset;
}

template <WeightType kType, int R>
void quant_tile(const QuantPanel& panel, const QuantRecord* x, int64_t blocks, bool stream,
                F (&acc)[R]) {
  for (int r = 0; r < R; ++r) acc[r] = zero();
  for (int64_t b = 0; b < blocks; ++b) {
    if (stream) prefetch_block<kType>(panel.data, b);
    const BlockPlaces at = places_of(kType, panel.layout, b);
    const BlockScales<kType> scales = read_scales<kType>(panel.data, at);
    Short8 w[8][kPairs];
    unpack<kType>(panel.data + at.low, panel.data + at.high, w);
    for (int r = 0; r < R; ++r) {
      for (int g = 0; g < kGroups<kType>; ++g) {
        const I sum = add(dot<kType>(w, x[b].values[r], g), set1(start_of<kType>(x[b], g, r)));
        acc[r] = fma(to_float(sum), mul(scales.scale[g], set1(x[b].scale[r])), acc[r]);
        if constexpr (kFormat<kType>.minima) {
          const float total =
              kGroups<kType> == 2 ? x[b].half_scaled_sum[g][r] : x[b].scaled_sum[r];
          acc[r] = fma(scales.minimum[g], set1(total), acc[r]);
        }
      }
    }
  }
}

// Dot products of quantised panels in plain C++. Included inside the variant's namespace.

typedef uint8_t Byte8 __attribute__((vector_size(8)));
typedef int16_t Short8 __attribute__((vector_size(16)));

// Vectors of one group of four values of K: two columns each.
constexpr int kPairs = 8;

// One block of a panel, widened, in the panel's order.
template <WeightType kType>
inline void unpack(const uint8_t* values, Short8 (&w)[8][kPairs]) {
  for (int g = 0; g < (kType == WeightType::kQ8_0 ? 8 : 4); ++g) {
    for (int p = 0; p < kPairs; ++p) {
      Byte8 bytes;
      __builtin_memcpy(&bytes, values + 64 * g + 8 * p, 8);
      const Short8 wide = __builtin_convertvector(bytes, Short8);
      if constexpr (kType == WeightType::kQ8_0) {
        w[g][p] = wide - 128;
      } else {
        w[g][p] = wide & 15;
        w[g + 4][p] = wide >> 4;
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

// A lane's product of bytes is at most 128 * 127, so 16 bits hold one; they hold the eight products
// with nibbles of a block, 8 * 15 * 127.
template <WeightType kType>
inline I dot(const Short8 (&w)[8][kPairs], const int8_t* x) {
  Int4 sums[kPairs] = {};
  Short8 run[kPairs] = {};
  for (int g = 0; g < 8; ++g, x += 4) {
    const Short8 four = {x[0], x[1], x[2], x[3], x[0], x[1], x[2], x[3]};
    for (int p = 0; p < kPairs; ++p) {
      if constexpr (kType == WeightType::kQ8_0) {
        sums[p] += add_neighbours(w[g][p] * four);
      } else {
        run[p] += w[g][p] * four;
      }
    }
  }
  I sum;
  for (int i = 0; i < 4; ++i) {
    if constexpr (kType != WeightType::kQ8_0) {
      sums[2 * i] = add_neighbours(run[2 * i]);
      sums[2 * i + 1] = add_neighbours(run[2 * i + 1]);
    }
    sum.part[i] = add_neighbours(sums[2 * i], sums[2 * i + 1]);
  }
  return sum;
}

template <WeightType kType, int R>
void quant_tile(const QuantPanel& panel, const QuantRecord* x, int64_t blocks, bool stream,
                F (&acc)[R]) {
  for (int r = 0; r < R; ++r) acc[r] = zero();
  for (int64_t b = 0; b < blocks; ++b) {
    if (stream) prefetch_block<kType>(panel.values, b);
    Short8 w[8][kPairs];
    unpack<kType>(panel.values + b * quant_plane_bytes(kType, 1), w);
    const F scale = load(panel.scales + b * kLanes);
    for (int r = 0; r < R; ++r) {
      I sum = dot<kType>(w, x[b].values[r]);
      if constexpr (kType == WeightType::kQ4_0) sum = add(sum, set1(x[b].start[r]));
      acc[r] = fma(to_float(sum), mul(scale, set1(x[b].scale[r])), acc[r]);
      if constexpr (kType == WeightType::kQ4_1) {
        acc[r] = fma(load(panel.minima + b * kLanes), set1(x[b].scaled_sum[r]), acc[r]);
      }
    }
  }
}

// What the numbers of a block are multiplied with. Included inside the variant's namespace, after
// its load_bytes.

// Scale and minimum of each group of a block, of 16 columns.
template <WeightType kType>
struct BlockScales {
  F scale[kGroups<kType>];
  F minimum[kGroups<kType>];
};

// Half of 2^(exponent - 127). The subnormal ones, of exponents 0 and 1, are below all others.
[[gnu::always_inline]] inline F power_of_exponent(I exponent) {
  const I normal = shift_left<23>(sub(exponent, set1(1)));
  const I subnormal = shift_left<21>(add(bit_and(exponent, set1(1)), set1(1)));
  return from_bits(max(normal, subnormal));
}

template <WeightType kType>
[[gnu::always_inline]] inline BlockScales<kType> read_scales(const uint8_t* panel, const BlockPlaces& at) {
  constexpr QuantFormat kIs = kFormat<kType>;
  BlockScales<kType> read{};
  const Half* super = reinterpret_cast<const Half*>(panel + at.super);
  if constexpr (kIs.scales == Scales::kHalf) {
    read.scale[0] = load(reinterpret_cast<const Half*>(panel + at.scales));
    if (kIs.minima) read.minimum[0] = load(reinterpret_cast<const Half*>(panel + at.minima));
  } else if constexpr (kIs.scales == Scales::kExponent) {
    read.scale[0] = power_of_exponent(bit_and(load_bytes(panel + at.scales), set1(255)));
  } else {
    const F scale = load(super);
    const F minimum = kIs.minima ? sub(zero(), load(super + kLanes)) : zero();
#pragma GCC unroll 2
    for (int g = 0; g < kGroups<kType>; ++g) {
      I small = load_bytes(panel + at.scales + g * kLanes);
      I small_minimum = small;
      if constexpr (kIs.scales == Scales::kNibbles) {
        small_minimum = bit_and(shift_right<4>(small), set1(15));
        small = bit_and(small, set1(15));
      } else if constexpr (kIs.minima) {
        small_minimum = load_bytes(panel + at.minima + g * kLanes);
      }
      read.scale[g] = mul(scale, to_float(small));
      if (kIs.minima) read.minimum[g] = mul(minimum, to_float(small_minimum));
    }
  }
  return read;
}

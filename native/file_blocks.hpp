// The block types as a GGUF file lays them out. Knows nothing of panels.
//
// Templates of the type, so that every shift is a constant; for the packing code alone.
#pragma once

#include <cstring>

#include "formats.hpp"

namespace treadle {

// Blocks of kQuantBlock values that are one block of the file.
constexpr int64_t file_block_blocks(WeightType type) {
  return two_levels(format_of(type)) ? kSuperBlocks : 1;
}

// A block of one row of the file, its bits sorted. Numbers are as panels hold them.
struct FileBlock {
  uint8_t numbers[kSuperBlocks * kQuantBlock];
  // Of each group, in the types of two levels.
  int8_t scales[kSuperBlocks * 2];
  int8_t minima[kSuperBlocks * 2];
  // f16; for MXFP4 an exponent in the low byte.
  uint16_t scale;
  uint16_t minimum;
};

// Bits of the numbers in `width` bytes after each other: the lowest of all of them are those of the
// first `width` numbers, the next of the following ones, and so on.
struct Field {
  int64_t at;
  int64_t width;
};

struct FileFormat {
  int64_t bytes;
  int64_t scale;
  int64_t minimum;
  int64_t group_scales;
  Field low;
  Field high;
};

constexpr FileFormat file_format(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
    case WeightType::kIQ4_NL:
      return {18, 0, 0, 0, {2, 16}, {}};
    case WeightType::kQ4_1:
      return {20, 0, 2, 0, {4, 16}, {}};
    case WeightType::kQ5_0:
      return {22, 0, 0, 0, {6, 16}, {2, 1}};
    case WeightType::kQ5_1:
      return {24, 0, 2, 0, {8, 16}, {4, 1}};
    case WeightType::kQ8_0:
      return {34, 0, 0, 0, {2, 32}, {}};
    case WeightType::kQ2_K:
      return {84, 80, 82, 0, {16, 32}, {}};
    case WeightType::kQ3_K:
      return {110, 108, 0, 96, {32, 32}, {0, 32}};
    case WeightType::kQ4_K:
      return {144, 0, 2, 4, {16, 32}, {}};
    case WeightType::kQ5_K:
      return {176, 0, 2, 4, {48, 32}, {16, 32}};
    case WeightType::kQ6_K:
      return {210, 208, 0, 192, {0, 64}, {128, 32}};
    case WeightType::kIQ4_XS:
      return {136, 0, 0, 2, {8, 16}, {}};
    default:  // MXFP4
      return {17, 0, 0, 0, {1, 16}, {}};
  }
}

// Bytes of a row of k values, of any type.
constexpr int64_t file_row_bytes(WeightType type, int64_t k) {
  if (is_float(type)) return k * (type == WeightType::kF32 ? 4 : 2);
  return k / (kQuantBlock * file_block_blocks(type)) * file_format(type).bytes;
}

inline uint16_t read_half(const uint8_t* from) {
  uint16_t half;
  std::memcpy(&half, from, sizeof half);
  return half;
}

// Ors the field's numbers of kBits bits, times 2^kUp, to kCount numbers.
template <int64_t kWidth, int kBits, int kUp, int64_t kCount>
void add_bits(const uint8_t* from, uint8_t* numbers) {
  constexpr int kMask = (1 << kBits) - 1;
  for (int64_t done = 0; done < kCount; from += kWidth) {
    for (int bit = 0; bit < 8; bit += kBits, done += kWidth) {
      for (int64_t i = 0; i < kWidth; ++i) {
        numbers[done + i] |= static_cast<uint8_t>((from[i] >> bit & kMask) << kUp);
      }
    }
  }
}

// Sixteen 6-bit scales, 32 above their values: low nibbles, then pairs of high bits.
inline void read_scales_q3(const uint8_t* from, FileBlock& to) {
  for (int i = 0; i < 16; ++i) {
    const int low = from[i % 8] >> (i / 8 * 4) & 15;
    const int high = from[8 + i % 4] >> (i / 4 * 2) & 3;
    to.scales[i] = static_cast<int8_t>((low | high << 4) - 32);
  }
}

// Eight 6-bit scales and minima. The first four have a byte each, whose two top bits are the top
// bits of the last four; a nibble each has the rest.
inline void read_scales_q4(const uint8_t* from, FileBlock& to) {
  for (int i = 0; i < 4; ++i) {
    const int scale = from[i];
    const int minimum = from[4 + i];
    const int rest = from[8 + i];
    to.scales[i] = static_cast<int8_t>(scale & 63);
    to.minima[i] = static_cast<int8_t>(minimum & 63);
    to.scales[4 + i] = static_cast<int8_t>((rest & 15) | scale >> 6 << 4);
    to.minima[4 + i] = static_cast<int8_t>(rest >> 4 | minimum >> 6 << 4);
  }
}

// Eight 6-bit scales, 32 above their values: sixteen bits of high pairs, then low nibbles.
inline void read_scales_iq4(const uint8_t* from, FileBlock& to) {
  const int pairs = read_half(from);
  for (int i = 0; i < 8; ++i) {
    const int low = from[2 + i / 2] >> (i % 2 * 4) & 15;
    to.scales[i] = static_cast<int8_t>((low | (pairs >> 2 * i & 3) << 4) - 32);
  }
}

template <WeightType kType>
void read_group_scales(const uint8_t* from, FileBlock& to) {
  if constexpr (kType == WeightType::kQ2_K) {
    for (int i = 0; i < 16; ++i) {
      to.scales[i] = from[i] & 15;
      to.minima[i] = from[i] >> 4;
    }
  } else if constexpr (kType == WeightType::kQ3_K) {
    read_scales_q3(from, to);
  } else if constexpr (kType == WeightType::kQ6_K) {
    std::memcpy(to.scales, from, 16);
  } else if constexpr (kType == WeightType::kIQ4_XS) {
    read_scales_iq4(from, to);
  } else {
    read_scales_q4(from, to);
  }
}

// Reads the block at `from`.
template <WeightType kType>
void read_file_block(const uint8_t* from, FileBlock& to) {
  constexpr QuantFormat kIs = format_of(kType);
  constexpr FileFormat kFile = file_format(kType);
  constexpr int64_t kCount = kQuantBlock * file_block_blocks(kType);
  if constexpr (kType == WeightType::kQ8_0) {
    for (int64_t i = 0; i < kCount; ++i) to.numbers[i] = from[kFile.low.at + i] ^ 128;
  } else {
    std::memset(to.numbers, 0, kCount);
    add_bits<kFile.low.width, kIs.low_bits, 0, kCount>(from + kFile.low.at, to.numbers);
  }
  if constexpr (kIs.high_bits > 0) {
    add_bits<kFile.high.width, kIs.high_bits, kIs.low_bits, kCount>(from + kFile.high.at,
                                                                    to.numbers);
  }
  if constexpr (two_levels(kIs)) read_group_scales<kType>(from + kFile.group_scales, to);
  to.scale = kIs.scales == Scales::kExponent ? from[kFile.scale] : read_half(from + kFile.scale);
  if constexpr (kIs.minima) to.minimum = read_half(from + kFile.minimum);
}

}  // namespace treadle

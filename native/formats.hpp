// The weight types, and how a panel of 16 columns of each lies in memory.
//
// This header is compiled once per instruction set, so nothing in it may become a symbol that the
// linker could take from the wrong variant: structures, constants and static functions only.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace treadle {

// Columns of a weight panel, and lanes of every sum that has lanes.
static constexpr int64_t kLanes = 16;
// Values of K that share a scale in quantised activations: a block.
static constexpr int64_t kQuantBlock = 32;
// Blocks that share an f16 scale in the types of two-level scales: a super-block.
static constexpr int64_t kSuperBlocks = 8;
// Bytes that one bit of each number of a block takes in a panel.
static constexpr int64_t kBitBytes = kLanes * kQuantBlock / 8;

// In the order of ops.WeightType.
enum class WeightType : int32_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
};
static constexpr int kWeightTypes = 16;

static constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

static constexpr bool is_float(WeightType type) { return type <= WeightType::kBF16; }

// What the numbers of the table types stand for. E2M1 is doubled, its scale halved.
static constexpr int8_t kNonLinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
static constexpr int8_t kE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

enum class Scales : int32_t {
  kHalf,      // an f16 per block; a minimum likewise, which is added
  kExponent,  // a power of two per block, as its exponent
  kBytes,     // an int8 per group, times an f16 per super-block; minima likewise, subtracted
  kNibbles,   // the same with four bits for a scale and four for a minimum, in one byte
};

// A weight is number - offset, or what the table has for the number, times its group's scale (plus
// its minimum).
struct QuantFormat {
  int low_bits;   // of a number, in the plane of low bits: 2, 4 or 8
  int high_bits;  // of a number, in the plane of high bits: 0, 1 or 2
  // Kernels multiply unsigned numbers; this is by how much they lie above their values.
  int offset;
  int group;  // values of K that share a scale: 16 or 32
  Scales scales;
  bool minima;
  const int8_t* table;
};

static constexpr QuantFormat format_of(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return {4, 0, 8, 32, Scales::kHalf, false, nullptr};
    case WeightType::kQ4_1:
      return {4, 0, 0, 32, Scales::kHalf, true, nullptr};
    case WeightType::kQ5_0:
      return {4, 1, 16, 32, Scales::kHalf, false, nullptr};
    case WeightType::kQ5_1:
      return {4, 1, 0, 32, Scales::kHalf, true, nullptr};
    case WeightType::kQ8_0:
      return {8, 0, 128, 32, Scales::kHalf, false, nullptr};
    case WeightType::kQ2_K:
      return {2, 0, 0, 16, Scales::kNibbles, true, nullptr};
    case WeightType::kQ3_K:
      return {2, 1, 4, 16, Scales::kBytes, false, nullptr};
    case WeightType::kQ4_K:
      return {4, 0, 0, 32, Scales::kBytes, true, nullptr};
    case WeightType::kQ5_K:
      return {4, 1, 0, 32, Scales::kBytes, true, nullptr};
    case WeightType::kQ6_K:
      return {4, 2, 32, 16, Scales::kBytes, false, nullptr};
    case WeightType::kIQ4_NL:
      return {4, 0, 128, 32, Scales::kHalf, false, kNonLinear};
    case WeightType::kIQ4_XS:
      return {4, 0, 128, 32, Scales::kBytes, false, kNonLinear};
    case WeightType::kMXFP4:
      return {4, 0, 16, 32, Scales::kExponent, false, kE2M1};
    default:
      return {};
  }
}

static constexpr int64_t groups_of(const QuantFormat& format) {
  return kQuantBlock / format.group;
}
static constexpr bool two_levels(const QuantFormat& format) {
  return format.scales == Scales::kBytes || format.scales == Scales::kNibbles;
}

// A quantised panel is chunks, one after the other: of a super-block each, or one of all of K where
// there are none. A chunk is planes over its blocks, in this order:
//   low     [block][low_bits][16 columns][4 bytes]
//   high    [block][high_bits][16 columns][4 bytes]
//   scales  [block][groups][16 columns] of f16 or bytes
//   minima  the same
//   super   [16 columns] of f16 for scales, then for minima
// In a plane of B bits per number, byte i of a column's four in row r of B holds k = 4g + i for
// g = r, r + B, r + 2B ... 7, from its low bits up: what 4-way dot products and loads of 64 bytes
// want.
struct PanelLayout {
  int64_t chunk_blocks;
  int64_t high;  // where the planes begin
  int64_t scales;
  int64_t minima;
  int64_t super;
  int64_t chunk_bytes;
};

static constexpr int64_t scale_bytes(const QuantFormat& format) {
  return format.scales == Scales::kHalf ? kLanes * 2 : kLanes * groups_of(format);
}

static constexpr PanelLayout layout_of(WeightType type, int64_t blocks) {
  const QuantFormat format = format_of(type);
  PanelLayout layout{};
  layout.chunk_blocks = two_levels(format) ? kSuperBlocks : blocks;
  layout.high = layout.chunk_blocks * kBitBytes * format.low_bits;
  layout.scales = layout.high + layout.chunk_blocks * kBitBytes * format.high_bits;
  const int64_t scales = layout.chunk_blocks * scale_bytes(format);
  layout.minima = layout.scales + scales;
  const bool apart = format.minima && format.scales != Scales::kNibbles;
  layout.super = layout.minima + (apart ? scales : 0);
  const int64_t halves = two_levels(format) ? kLanes * (format.minima ? 2 : 1) : 0;
  layout.chunk_bytes = round_up(layout.super + halves * 2, 64);
  return layout;
}

// A float panel is [k][16 columns] of the stored type, a bf16 one [k / 2][16 columns][2]: pairs are
// what dot products of bf16 take, and 32 bits are easy to widen for others. A pair that is half
// empty ends in zeros.
static constexpr int64_t float_place(WeightType type, int64_t k, int64_t column) {
  if (type == WeightType::kBF16) return (k / 2 * kLanes + column) * 2 + k % 2;
  return k * kLanes + column;
}

static constexpr int64_t panel_bytes(WeightType type, int64_t k) {
  if (type == WeightType::kBF16) return round_up(k, 2) * kLanes * 2;
  if (is_float(type)) return k * kLanes * (type == WeightType::kF32 ? 4 : 2);
  const PanelLayout layout = layout_of(type, k / kQuantBlock);
  return k / kQuantBlock / layout.chunk_blocks * layout.chunk_bytes;
}

// Where in a panel one block has its share of each plane, in bytes.
struct BlockPlaces {
  int64_t low;
  int64_t high;
  int64_t scales;
  int64_t minima;
  int64_t super;
};

[[gnu::always_inline]] static inline BlockPlaces places_of(WeightType type,
                                                          const PanelLayout& layout,
                                                          int64_t block) {
  const QuantFormat format = format_of(type);
  const int64_t chunk = two_levels(format) ? block / kSuperBlocks * layout.chunk_bytes : 0;
  const int64_t within = two_levels(format) ? block % kSuperBlocks : block;
  return {chunk + within * kBitBytes * format.low_bits,
          chunk + layout.high + within * kBitBytes * format.high_bits,
          chunk + layout.scales + within * scale_bytes(format),
          chunk + layout.minima + within * scale_bytes(format), chunk + layout.super};
}

}  // namespace treadle

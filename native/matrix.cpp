#include "matrix.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "file_blocks.hpp"

namespace treadle {
namespace {

float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  uint32_t bits;
  if (magnitude >= 0x7c00) {
    bits = 0x7f800000 | (magnitude & 0x3ff) << 13;
  } else if (magnitude >= 0x0400) {
    bits = (magnitude << 13) + 0x38000000;
  } else {
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    std::memcpy(&bits, &subnormal, 4);
  }
  bits |= sign;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

template <class T>
T read(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Infinity and NaN have all bits of kExponent.
template <WeightType kType, class T, T kExponent>
bool pack_float_column(const uint8_t* row, int64_t k, uint8_t* panel, int64_t column) {
  T* to = reinterpret_cast<T*>(panel);
  bool finite = true;
  for (int64_t i = 0; i < k; ++i) {
    const T value = read<T>(row + i * sizeof(T));
    finite &= (value & kExponent) != kExponent;
    to[float_place(kType, i, column)] = value;
  }
  return finite;
}

template <WeightType kType>
bool is_finite(const FileBlock& block) {
  constexpr QuantFormat kIs = format_of(kType);
  if constexpr (kIs.scales == Scales::kExponent) return (block.scale & 0xff) != 0xff;
  constexpr int kExponent = 0x7c00;
  return (block.scale & kExponent) != kExponent &&
         (!kIs.minima || (block.minimum & kExponent) != kExponent);
}

// kBits bits of each of a block's numbers, from bit kShift on, to rows of a panel.
template <int kBits, int kShift>
void pack_bits(const uint8_t* numbers, uint8_t* to) {
  constexpr uint32_t kMask = 0x01010101u * ((1u << kBits) - 1);
  for (int r = 0; r < kBits; ++r) {
    uint32_t four = 0;
    for (int g = r; g < 8; g += kBits) {
      four |= (read<uint32_t>(numbers + 4 * g) >> kShift & kMask) << (g - r);
    }
    std::memcpy(to + r * kLanes * 4, &four, 4);
  }
}

// Of block `within` of a file's block.
template <WeightType kType>
void pack_scales(const FileBlock& from, int64_t within, uint8_t* panel, const BlockPlaces& at) {
  constexpr QuantFormat kIs = format_of(kType);
  if constexpr (kIs.scales == Scales::kHalf) {
    std::memcpy(panel + at.scales, &from.scale, 2);
    if (kIs.minima) std::memcpy(panel + at.minima, &from.minimum, 2);
  } else if constexpr (kIs.scales == Scales::kExponent) {
    panel[at.scales] = static_cast<uint8_t>(from.scale);
  } else {
    for (int64_t i = 0; i < groups_of(kIs); ++i) {
      const int8_t scale = from.scales[within * groups_of(kIs) + i];
      const int8_t minimum = from.minima[within * groups_of(kIs) + i];
      constexpr bool kApart = kIs.scales == Scales::kBytes;
      panel[at.scales + i * kLanes] = static_cast<uint8_t>(kApart ? scale : scale | minimum << 4);
      if (kApart && kIs.minima) panel[at.minima + i * kLanes] = static_cast<uint8_t>(minimum);
    }
    std::memcpy(panel + at.super, &from.scale, 2);
    if (kIs.minima) std::memcpy(panel + at.super + kLanes * 2, &from.minimum, 2);
  }
}

// A block's places as seen from one column.
BlockPlaces column_places(WeightType type, const PanelLayout& layout, int64_t block,
                          int64_t column) {
  const bool halves = format_of(type).scales == Scales::kHalf;
  const int64_t scale = column * (halves ? 2 : 1);
  const BlockPlaces at = places_of(type, layout, block);
  return {at.low + column * 4, at.high + column * 4, at.scales + scale, at.minima + scale,
          at.super + column * 2};
}

template <WeightType kType>
bool pack_quant_column(const uint8_t* row, int64_t k, uint8_t* panel, int64_t column) {
  constexpr QuantFormat kIs = format_of(kType);
  constexpr int64_t kTogether = file_block_blocks(kType);
  constexpr int64_t kBytes = file_row_bytes(kType, kTogether * kQuantBlock);
  const PanelLayout layout = layout_of(kType, k / kQuantBlock);
  FileBlock block{};
  bool finite = true;
  for (int64_t b = 0; b < k / kQuantBlock; b += kTogether, row += kBytes) {
    read_file_block<kType>(row, block);
    finite &= is_finite<kType>(block);
    for (int64_t within = 0; within < kTogether; ++within) {
      const BlockPlaces at = column_places(kType, layout, b + within, column);
      const uint8_t* numbers = block.numbers + within * kQuantBlock;
      pack_bits<kIs.low_bits, 0>(numbers, panel + at.low);
      pack_bits<kIs.high_bits, kIs.low_bits>(numbers, panel + at.high);
      pack_scales<kType>(block, within, panel, at);
    }
  }
  return finite;
}

float to_float(WeightType type, const uint8_t* value) {
  if (type == WeightType::kF32) return read<float>(value);
  if (type == WeightType::kF16) return half_to_float(read<uint16_t>(value));
  const uint32_t bits = static_cast<uint32_t>(read<uint16_t>(value)) << 16;
  float wide;
  std::memcpy(&wide, &bits, 4);
  return wide;
}

template <WeightType kType>
void read_float_column(const uint8_t* panel, int64_t k, int64_t column, float* out) {
  constexpr int64_t kSize = kType == WeightType::kF32 ? 4 : 2;
  for (int64_t i = 0; i < k; ++i) {
    out[i] = to_float(kType, panel + float_place(kType, i, column) * kSize);
  }
}

float exponent_value(uint8_t exponent) {
  // Half of 2^(exponent - 127); the smallest two are subnormal.
  const uint32_t bits =
      exponent < 2 ? 0x00200000u << exponent : static_cast<uint32_t>(exponent - 1) << 23;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

struct GroupScale {
  float scale;
  float minimum;
};

template <WeightType kType>
GroupScale read_scale(const uint8_t* panel, const BlockPlaces& at, int64_t group) {
  constexpr QuantFormat kIs = format_of(kType);
  const auto half = [&](int64_t place) { return half_to_float(read<uint16_t>(panel + place)); };
  if constexpr (kIs.scales == Scales::kHalf) {
    return {half(at.scales), kIs.minima ? half(at.minima) : 0.0f};
  } else if constexpr (kIs.scales == Scales::kExponent) {
    return {exponent_value(panel[at.scales]), 0.0f};
  } else {
    constexpr bool kNibbles = kIs.scales == Scales::kNibbles;
    const int byte = static_cast<int8_t>(panel[at.scales + group * kLanes]);
    const float scale = half(at.super) * static_cast<float>(kNibbles ? byte & 15 : byte);
    if constexpr (!kIs.minima) return {scale, 0.0f};
    const int minimum = kNibbles ? byte >> 4 & 15 : panel[at.minima + group * kLanes];
    return {scale, -half(at.super + kLanes * 2) * static_cast<float>(minimum)};
  }
}

// Ors kBits bits of each of a block's numbers, times 2^kUp.
template <int kBits, int kUp>
void read_bits(const uint8_t* plane, uint8_t* numbers) {
  constexpr uint32_t kMask = 0x01010101u * ((1u << kBits) - 1);
  for (int r = 0; r < kBits; ++r) {
    const uint32_t four = read<uint32_t>(plane + r * kLanes * 4);
    for (int g = r; g < 8; g += kBits) {
      const uint32_t known = read<uint32_t>(numbers + 4 * g) | (four >> (g - r) & kMask) << kUp;
      std::memcpy(numbers + 4 * g, &known, 4);
    }
  }
}

template <WeightType kType>
void read_quant_column(const uint8_t* panel, int64_t k, int64_t column, float* out) {
  constexpr QuantFormat kIs = format_of(kType);
  const PanelLayout layout = layout_of(kType, k / kQuantBlock);
  for (int64_t b = 0; b < k / kQuantBlock; ++b, out += kQuantBlock) {
    const BlockPlaces at = column_places(kType, layout, b, column);
    uint8_t numbers[kQuantBlock] = {};
    read_bits<kIs.low_bits, 0>(panel + at.low, numbers);
    read_bits<kIs.high_bits, kIs.low_bits>(panel + at.high, numbers);
    for (int64_t group = 0; group < groups_of(kIs); ++group) {
      const GroupScale meant = read_scale<kType>(panel, at, group);
      for (int64_t i = group * kIs.group; i < (group + 1) * kIs.group; ++i) {
        const int value = kIs.table != nullptr ? kIs.table[numbers[i]] : numbers[i] - kIs.offset;
        out[i] = static_cast<float>(value) * meant.scale;
        if (kIs.minima) out[i] += meant.minimum;
      }
    }
  }
}

// Between a file's row and a panel's column; packing says whether all numbers are finite.
struct ColumnCode {
  bool (*pack)(const uint8_t* row, int64_t k, uint8_t* panel, int64_t column);
  void (*read)(const uint8_t* panel, int64_t k, int64_t column, float* out);
};

template <WeightType kType, class Stored, Stored kExponent>
constexpr ColumnCode kFloatCode = {pack_float_column<kType, Stored, kExponent>,
                                   read_float_column<kType>};
template <WeightType kType>
constexpr ColumnCode kQuantCode = {pack_quant_column<kType>, read_quant_column<kType>};

// In the order of WeightType.
constexpr ColumnCode kColumnCode[kWeightTypes] = {
    kFloatCode<WeightType::kF32, uint32_t, 0x7f800000>,
    kFloatCode<WeightType::kF16, uint16_t, 0x7c00>,
    kFloatCode<WeightType::kBF16, uint16_t, 0x7f80>,
    kQuantCode<WeightType::kQ4_0>,
    kQuantCode<WeightType::kQ4_1>,
    kQuantCode<WeightType::kQ5_0>,
    kQuantCode<WeightType::kQ5_1>,
    kQuantCode<WeightType::kQ8_0>,
    kQuantCode<WeightType::kQ2_K>,
    kQuantCode<WeightType::kQ3_K>,
    kQuantCode<WeightType::kQ4_K>,
    kQuantCode<WeightType::kQ5_K>,
    kQuantCode<WeightType::kQ6_K>,
    kQuantCode<WeightType::kIQ4_NL>,
    kQuantCode<WeightType::kIQ4_XS>,
    kQuantCode<WeightType::kMXFP4>,
};

const ColumnCode& code_of(WeightType type) { return kColumnCode[static_cast<int>(type)]; }

}  // namespace

int64_t packed_bytes(WeightType type, int64_t n, int64_t k) {
  return ceil_div(n, kLanes) * panel_bytes(type, k);
}

Packed pack_part(Pool& pool, WeightType type, const uint8_t* from, int64_t n, int64_t k,
                 uint8_t* to) {
  const Part part{type, to, n, k, 0, ceil_div(n, kLanes), panel_bytes(type, k)};
  std::atomic<bool> finite{true};
  pool.each(part.panels, [&](int64_t p, int) {
    uint8_t* panel = to + p * part.panel_bytes;
    // Columns that pad the last panel must be zero, and the bytes after the planes defined.
    std::memset(panel, 0, static_cast<size_t>(part.panel_bytes));
    const int64_t columns = std::min(kLanes, n - p * kLanes);
    for (int64_t c = 0; c < columns; ++c) {
      const uint8_t* row = from + (p * kLanes + c) * file_row_bytes(type, k);
      if (!code_of(type).pack(row, k, panel, c)) finite = false;
    }
  });
  return {part, finite};
}

void read_row(const Matrix& matrix, int64_t n, float scale, float* out) {
  size_t i = 0;
  while (n >= matrix.parts[i].column + matrix.parts[i].n) ++i;
  const Part& part = matrix.parts[i];
  const int64_t row = n - part.column;
  const uint8_t* panel = part.data + row / kLanes * part.panel_bytes;
  code_of(part.type).read(panel, part.k, row % kLanes, out);
  for (int64_t k = 0; k < part.k; ++k) out[k] *= scale;
}

}  // namespace treadle

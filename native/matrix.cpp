#include "matrix.hpp"

#include <algorithm>
#include <cstring>

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

bool is_float(WeightType type) {
  return type == WeightType::kF32 || type == WeightType::kF16 || type == WeightType::kBF16;
}

// Bytes of a file's block: its scale, for Q4_1 its minimum, then its values.
int64_t file_block_bytes(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return 18;
    case WeightType::kQ4_1:
      return 20;
    default:
      return 34;
  }
}

int64_t file_row_bytes(WeightType type, int64_t k) {
  if (is_float(type)) return k * (type == WeightType::kF32 ? 4 : 2);
  return k / kQuantBlock * file_block_bytes(type);
}

struct Planes {
  uint8_t* values;
  uint16_t* scales;
  uint16_t* minima;
};

Planes planes_of(WeightType type, uint8_t* panel, int64_t k) {
  const int64_t blocks = k / kQuantBlock;
  uint16_t* scales = reinterpret_cast<uint16_t*>(panel + quant_plane_bytes(type, blocks));
  return {panel, scales, scales + blocks * kLanes};
}

template <class T>
void pack_float_column(const uint8_t* row, int64_t k, uint8_t* panel, int64_t column) {
  T* to = reinterpret_cast<T*>(panel) + column;
  for (int64_t i = 0; i < k; ++i) to[i * kLanes] = read<T>(row + i * sizeof(T));
}

// A file's nibbles hold k = j low and k = j + 16 high in byte j, which is the panel's order too.
void pack_quant_column(WeightType type, const uint8_t* row, int64_t k, uint8_t* panel,
                       int64_t column) {
  const Planes planes = planes_of(type, panel, k);
  const int64_t groups = type == WeightType::kQ8_0 ? 8 : 4;
  const uint32_t flip = type == WeightType::kQ8_0 ? 0x80808080 : 0;
  const int64_t header = type == WeightType::kQ4_1 ? 4 : 2;
  for (int64_t b = 0; b < k / kQuantBlock; ++b, row += file_block_bytes(type)) {
    planes.scales[b * kLanes + column] = read<uint16_t>(row);
    if (type == WeightType::kQ4_1) planes.minima[b * kLanes + column] = read<uint16_t>(row + 2);
    for (int64_t g = 0; g < groups; ++g) {
      const uint32_t four = read<uint32_t>(row + header + 4 * g) ^ flip;
      std::memcpy(planes.values + ((b * groups + g) * kLanes + column) * 4, &four, 4);
    }
  }
}

void pack_column(WeightType type, const uint8_t* row, int64_t k, uint8_t* panel, int64_t column) {
  if (type == WeightType::kF32) {
    pack_float_column<uint32_t>(row, k, panel, column);
  } else if (is_float(type)) {
    pack_float_column<uint16_t>(row, k, panel, column);
  } else {
    pack_quant_column(type, row, k, panel, column);
  }
}

float float_value(WeightType type, const uint8_t* panel, int64_t index) {
  switch (type) {
    case WeightType::kF32:
      return read<float>(panel + 4 * index);
    case WeightType::kF16:
      return half_to_float(read<uint16_t>(panel + 2 * index));
    default: {
      const uint32_t bits = static_cast<uint32_t>(read<uint16_t>(panel + 2 * index)) << 16;
      float value;
      std::memcpy(&value, &bits, 4);
      return value;
    }
  }
}

// `out` is one block of one column.
void read_quant_block(const Part& part, const uint8_t* panel, int64_t block, int64_t column,
                      float* out) {
  const Planes planes = planes_of(part.type, const_cast<uint8_t*>(panel), part.k);
  const float scale = half_to_float(planes.scales[block * kLanes + column]);
  const bool bytes = part.type == WeightType::kQ8_0;
  const int64_t groups = bytes ? 8 : 4;
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t* four = planes.values + ((block * groups + g) * kLanes + column) * 4;
    for (int64_t i = 0; i < 4; ++i) {
      if (bytes) {
        out[4 * g + i] = static_cast<float>(four[i] - 128) * scale;
      } else {
        const int offset = part.type == WeightType::kQ4_0 ? 8 : 0;
        out[4 * g + i] = static_cast<float>((four[i] & 15) - offset) * scale;
        out[4 * g + i + 16] = static_cast<float>((four[i] >> 4) - offset) * scale;
      }
    }
  }
  if (part.type == WeightType::kQ4_1) {
    const float minimum = half_to_float(planes.minima[block * kLanes + column]);
    for (int64_t i = 0; i < kQuantBlock; ++i) out[i] += minimum;
  }
}

}  // namespace

int64_t packed_bytes(WeightType type, int64_t n, int64_t k) {
  return ceil_div(n, kLanes) * panel_bytes(type, k);
}

Part pack_part(Pool& pool, WeightType type, const uint8_t* from, int64_t n, int64_t k,
               uint8_t* to) {
  const Part part{type, to, n, k, 0, ceil_div(n, kLanes), panel_bytes(type, k)};
  pool.each(part.panels, [&](int64_t p, int) {
    uint8_t* panel = to + p * part.panel_bytes;
    // Columns that pad the last panel must be zero, and the bytes after the planes defined.
    std::memset(panel, 0, static_cast<size_t>(part.panel_bytes));
    const int64_t columns = std::min(kLanes, n - p * kLanes);
    for (int64_t c = 0; c < columns; ++c) {
      pack_column(type, from + (p * kLanes + c) * file_row_bytes(type, k), k, panel, c);
    }
  });
  return part;
}

void read_row(const Matrix& matrix, int64_t n, float scale, float* out) {
  size_t i = 0;
  while (n >= matrix.parts[i].column + matrix.parts[i].n) ++i;
  const Part& part = matrix.parts[i];
  const int64_t row = n - part.column;
  const uint8_t* panel = part.data + row / kLanes * part.panel_bytes;
  const int64_t column = row % kLanes;
  if (is_float(part.type)) {
    for (int64_t k = 0; k < part.k; ++k) {
      out[k] = float_value(part.type, panel, k * kLanes + column);
    }
  } else {
    for (int64_t b = 0; b < part.k / kQuantBlock; ++b) {
      read_quant_block(part, panel, b, column, out + b * kQuantBlock);
    }
  }
  for (int64_t k = 0; k < part.k; ++k) out[k] *= scale;
}

}  // namespace treadle

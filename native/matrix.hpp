// Weight matrices in the kernels' layout: packing from a file's layout, and reading rows back.
#pragma once

#include <vector>

#include "pool.hpp"
#include "types.hpp"

namespace treadle {

// Parts stacked along n, all of one k.
struct Matrix {
  int64_t k;
  std::vector<Part> parts;
};

// Bytes of a packed part of n columns.
int64_t packed_bytes(WeightType type, int64_t n, int64_t k);

struct Packed {
  Part part;
  bool finite;  // all values, and all scales of values
};

// Repacks n rows of k values, as a file stores them, into panels at `to`.
Packed pack_part(Pool& pool, WeightType type, const uint8_t* from, int64_t n, int64_t k,
                 uint8_t* to);

// Writes row `n` of the matrix, dequantised and times scale.
void read_row(const Matrix& matrix, int64_t n, float scale, float* out);

}  // namespace treadle

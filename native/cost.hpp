// What an op has to move and to compute, however it is carried out: what profiles hold its time
// against. Sizes follow from shapes alone; what a cache may save is not taken off.
#pragma once

#include <string>
#include <vector>

#include "matrix.hpp"

namespace treadle {

// What computes: dot products of bytes, or float multiply-adds.
enum class Unit : int32_t { kBytes, kFloats };

struct Cost {
  int64_t weight_bytes;      // read, once per step
  int64_t kv_bytes;          // read or written
  int64_t activation_bytes;  // read and written; mostly in a cache
  int64_t operations;        // a multiply-add is two, an exponential one

  Cost& operator+=(const Cost& other);
};

// Per value of a gated activation.
inline constexpr int64_t kGatedOperations = 4;

Cost operator*(const Cost& cost, int64_t count);

// One op of one run.
struct OpTime {
  std::string label;
  std::string kernel;
  Unit unit;
  Cost cost;
  int64_t nanoseconds;
};

// Bytes of one row in all forms that are kept.
int64_t row_bytes(const Activations& a);
// Bytes of one row of a table, as packed.
int64_t row_bytes(const Matrix& table);
// Per K and V of one token in one layer.
int64_t token_bytes(const KVLayer& kv);

// Of one row, but for weights, which count once; so row ops scale all else.
Cost norm_cost(const NormArgs& args, int64_t operations);
Cost rope_cost(const RopeArgs& args);

// `rows` of them times one part.
Cost linear_cost(const LinearArgs& args, int64_t rows);

// Consecutive tokens of one row of the batch, from `position` on: K and V are read once for all.
Cost attention_cost(const AttentionArgs& args, int64_t position, int64_t tokens);

}  // namespace treadle

// Choosing tokens from logits. One thread per row, so a row's sums never depend on the others.
#pragma once

#include <vector>

#include "backend.hpp"
#include "head.hpp"

namespace treadle {

// Logits [rows, vocabulary], rows `stride` floats apart.
struct Logits {
  float* values;
  int64_t rows;
  int64_t vocabulary;
  int64_t stride;
};

struct Edits {
  int64_t count;
  const int32_t* rows;
  const int32_t* tokens;
  const float* add;
  const float* repetition;
  const float* subtract;
};

struct SampleRows {
  const float* temperature;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const double* uniform;
};

struct TopOutputs {
  int64_t num_top;
  float* log_sum_exp;  // [rows]
  int32_t* tokens;     // [rows, num_top]
  float* logits;       // [rows, num_top]
};

void edit(const Logits& logits, const Edits& edits);

// `allowed` holds a row of bits, in words, for each of the `count` rows named by `rows`.
void mask(const Logits& logits, const int32_t* rows, int64_t count, const uint32_t* allowed);

class Sampler {
 public:
  explicit Sampler(const Kernels& kernels) : kernels_(kernels) {}

  // The rows named by `rows`, `count` of them.
  void top_logprobs(Pool& pool, const Logits& logits, const int32_t* rows, int64_t count,
                    const TopOutputs& out);
  void sample(Pool& pool, const Logits& logits, const SampleRows& rows, int32_t* out);

 private:
  // A thread's workspace; grows to the vocabulary once.
  struct Scratch {
    std::vector<float> weights;
    std::vector<float> sums;
    std::vector<int32_t> ids;
    std::vector<uint64_t> keys;
  };
  struct Cuts;
  struct Kept;

  static Kept keep(const uint64_t* keys, int64_t count, double total, const Cuts& cuts);
  int64_t sort_candidates(int64_t n, float floor, const Cuts& cuts, Scratch& scratch) const;
  double total_at_least(int64_t n, float floor, Scratch& scratch) const;
  void prepare(int threads, int64_t vocabulary);
  float log_sum_exp(const float* x, int64_t n, Scratch& scratch) const;
  int32_t choose(const float* x, int64_t n, const SampleRows& rows, int64_t row,
                 Scratch& scratch) const;
  int32_t choose_in_id_order(int64_t n, double uniform, const Scratch& scratch) const;
  int32_t choose_with_cuts(int64_t n, const Cuts& cuts, double uniform, Scratch& scratch) const;

  const Kernels& kernels_;
  std::vector<Scratch> scratch_;
};

}  // namespace treadle

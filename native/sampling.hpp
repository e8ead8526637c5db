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
  // What limits the choice of a row. `top_k` is the vocabulary where it does not bind.
  struct Cuts {
    int64_t top_k;
    double top_p;
    float min_p;
  };

  // Weights are relative to the largest, which is 1. A bucket holds a 256th of an octave of them, the
  // largest first.
  static constexpr int kBucketShift = 15;
  static constexpr size_t kBuckets = (0x3f800000u >> kBucketShift) + 1;

  // A thread's workspace; grows to the vocabulary once.
  struct Scratch {
    std::vector<float> weights;
    std::vector<float> sums;
    std::vector<int32_t> ids;
    std::vector<uint64_t> keys;
    std::vector<double> bucket_sums;
  };
  // Where the kept tokens end: behind `keys` of the sorted ones of a bucket.
  struct End {
    size_t bucket;
    int64_t keys;
    double sum;  // of all kept
    bool reached;
  };

  static double total_of(const std::vector<float>& sums, int64_t n);
  void prepare(int threads, int64_t vocabulary);
  float log_sum_exp(const float* x, int64_t n, Scratch& scratch) const;
  int32_t choose(const float* x, int64_t n, const SampleRows& rows, int64_t row,
                 Scratch& scratch) const;
  int32_t choose_in_id_order(int64_t n, double uniform, const Scratch& scratch) const;

  // In cuts.cpp.
  int32_t choose_with_cuts(int64_t n, const Cuts& cuts, double uniform, Scratch& scratch) const;
  int32_t choose_with_top_k(int64_t n, const Cuts& cuts, double uniform, Scratch& scratch) const;
  double total_at_least(int64_t n, float floor, Scratch& scratch) const;
  int64_t collect(int64_t n, float floor, Scratch& scratch) const;
  static int64_t sort_bucket(size_t bucket, int64_t count, Scratch& scratch);
  static End end_of(int64_t count, size_t buckets, double target, Scratch& scratch);

  const Kernels& kernels_;
  std::vector<Scratch> scratch_;
};

}  // namespace treadle

#include "sampling.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace treadle {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

void edit(const Logits& logits, const Edits& edits) {
  for (int64_t i = 0; i < edits.count; ++i) {
    float& x = logits.values[edits.rows[i] * logits.stride + edits.tokens[i]];
    x += edits.add[i];
    x = x > 0.0f ? x / edits.repetition[i] : x * edits.repetition[i];
    x -= edits.subtract[i];
  }
}

void mask(const Logits& logits, const int32_t* rows, int64_t count, const uint32_t* allowed) {
  constexpr int64_t kBits = 32;
  const int64_t words = ceil_div(logits.vocabulary, kBits);
  for (int64_t i = 0; i < count; ++i) {
    float* x = logits.values + rows[i] * logits.stride;
    for (int64_t w = 0; w < words; ++w) {
      const uint32_t word = allowed[i * words + w];
      const int64_t first = w * kBits;
      const int64_t n = std::min(kBits, logits.vocabulary - first);
      if (word == ~uint32_t{0}) continue;
      if (word == 0) {
        std::fill_n(x + first, n, -kInfinity);
        continue;
      }
      for (int64_t bit = 0; bit < n; ++bit) {
        if ((word >> bit & 1) == 0) x[first + bit] = -kInfinity;
      }
    }
  }
}

double Sampler::total_of(const std::vector<float>& sums, int64_t n) {
  return std::accumulate(sums.begin(), sums.begin() + ceil_div(n, kVocabularyPiece), 0.0);
}

void Sampler::prepare(int threads, int64_t vocabulary) {
  scratch_.resize(static_cast<size_t>(threads));
  for (Scratch& scratch : scratch_) {
    const size_t n = static_cast<size_t>(vocabulary);
    if (scratch.weights.size() >= n) continue;
    scratch.weights.resize(n);
    scratch.ids.resize(n);
    scratch.keys.resize(n);
    scratch.sums.resize(n / kVocabularyPiece + 1);
    scratch.bucket_sums.resize(kBuckets);
  }
}

float Sampler::log_sum_exp(const float* x, int64_t n, Scratch& scratch) const {
  const float max = kernels_.largest(x, n);
  if (std::isinf(max)) return max;
  kernels_.exponentials(x, n, max, 1.0f, nullptr, scratch.sums.data());
  return static_cast<float>(max + std::log(total_of(scratch.sums, n)));
}

void Sampler::top_logprobs(Pool& pool, const Logits& logits, const int32_t* rows, int64_t count,
                           const TopOutputs& out) {
  prepare(pool.threads(), logits.vocabulary);
  pool.each(count, [&](int64_t i, int thread) {
    const float* x = logits.values + rows[i] * logits.stride;
    const int64_t n = logits.vocabulary;
    out.log_sum_exp[i] = log_sum_exp(x, n, scratch_[static_cast<size_t>(thread)]);
    if (out.num_top == 0) return;
    int32_t* top = out.tokens + i * out.num_top;
    // NaN ranks below everything else.
    const auto rank = [&](int32_t id) { return std::isnan(x[id]) ? -kInfinity : x[id]; };
    const auto better = [&](int32_t a, int32_t b) {
      return rank(a) != rank(b) ? rank(a) > rank(b) : a < b;
    };
    std::iota(top, top + out.num_top, 0);
    std::sort(top, top + out.num_top, better);
    int32_t* worst = top + out.num_top - 1;
    // Ids ascend, so an equal logit comes too late.
    for (int64_t id = kernels_.next_above(x, out.num_top, n, rank(*worst)); id < n;
         id = kernels_.next_above(x, id + 1, n, rank(*worst))) {
      *worst = static_cast<int32_t>(id);
      int32_t* place = std::upper_bound(top, worst, *worst, better);
      std::rotate(place, worst, worst + 1);
    }
    for (int64_t j = 0; j < out.num_top; ++j) out.logits[i * out.num_top + j] = x[top[j]];
  });
}

void Sampler::sample(Pool& pool, const Logits& logits, const SampleRows& rows, int32_t* out) {
  prepare(pool.threads(), logits.vocabulary);
  pool.each(logits.rows, [&](int64_t row, int thread) {
    out[row] = choose(logits.values + row * logits.stride, logits.vocabulary, rows, row,
                      scratch_[static_cast<size_t>(thread)]);
  });
}

int32_t Sampler::choose(const float* x, int64_t n, const SampleRows& rows, int64_t row,
                        Scratch& scratch) const {
  const float max = kernels_.largest(x, n);
  if (!(max > -kInfinity)) return kNoToken;
  // All weight is on the largest logits where they are infinite.
  if (rows.temperature[row] <= 0.0f || std::isinf(max)) {
    return static_cast<int32_t>(kernels_.first_equal(x, n, max));
  }
  kernels_.exponentials(x, n, max, rows.temperature[row], scratch.weights.data(),
                        scratch.sums.data());
  const int64_t top_k = rows.top_k[row];
  const Cuts cuts{top_k > 0 && top_k < n ? top_k : n, rows.top_p[row],
                  std::min(rows.min_p[row], 1.0f)};
  const double uniform = rows.uniform[row];
  if (cuts.top_k < n) return choose_with_top_k(n, cuts, uniform, scratch);
  return cuts.top_p < 1.0 || cuts.min_p > 0.0f ? choose_with_cuts(n, cuts, uniform, scratch)
                                               : choose_in_id_order(n, uniform, scratch);
}

int32_t Sampler::choose_in_id_order(int64_t n, double uniform, const Scratch& scratch) const {
  const double target = uniform * total_of(scratch.sums, n);
  double before = 0.0;
  int64_t piece = 0;
  const int64_t last_piece = ceil_div(n, kVocabularyPiece) - 1;
  while (piece < last_piece && before + scratch.sums[static_cast<size_t>(piece)] <= target) {
    before += scratch.sums[static_cast<size_t>(piece++)];
  }
  int64_t chosen = piece * kVocabularyPiece;
  const int64_t end = std::min(n, chosen + kVocabularyPiece);
  for (int64_t id = chosen; id < end; ++id) {
    const float weight = scratch.weights[static_cast<size_t>(id)];
    if (weight == 0.0f) continue;
    // The last one with weight where the piece's own rounding leaves the target unreached.
    chosen = id;
    before += weight;
    if (before > target) break;
  }
  return static_cast<int32_t>(chosen);
}

}  // namespace treadle

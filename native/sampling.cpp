#include "sampling.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

namespace treadle {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Candidates for a cut are first looked for among weights of at least this, the largest being 1;
// then the bound falls by the factor until the cut is certain.
constexpr float kFirstFloor = 0x1p-4f;
constexpr float kFloorFactor = 0x1p-2f;

// Larger for what comes first: the greater weight, the lower id. Weights are not negative, so their
// bits are in their order.
uint64_t key_of(float weight, int32_t id) {
  return static_cast<uint64_t>(std::bit_cast<uint32_t>(weight)) << 32 |
         (0xffffffffu - static_cast<uint32_t>(id));
}
int32_t id_of(uint64_t key) { return static_cast<int32_t>(0xffffffffu - (key & 0xffffffffu)); }
float weight_of(uint64_t key) {
  return std::bit_cast<float>(static_cast<uint32_t>(key >> 32));
}

double total_of(const std::vector<float>& sums, int64_t n) {
  return std::accumulate(sums.begin(), sums.begin() + ceil_div(n, kVocabularyPiece), 0.0);
}

}  // namespace

// What limits the choice of a row. `top_k` is the vocabulary where it does not bind.
struct Sampler::Cuts {
  int64_t top_k;
  double top_p;
  float min_p;

  bool bind(int64_t n) const { return top_k < n || top_p < 1.0 || min_p > 0.0f; }
};

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
      for (int64_t bit = 0; bit < n; ++bit) {
        if ((word >> bit & 1) == 0) x[first + bit] = -kInfinity;
      }
    }
  }
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
  return cuts.bind(n) ? choose_with_cuts(n, cuts, rows.uniform[row], scratch)
                      : choose_in_id_order(n, rows.uniform[row], scratch);
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

// The kept prefix of candidates in order, and its sum; `certain` when no token below the candidates
// could belong to it.
struct Sampler::Kept {
  int64_t count;
  double sum;
  bool certain;
};

Sampler::Kept Sampler::keep(const uint64_t* keys, int64_t count, double total, const Cuts& cuts) {
  Kept kept{0, 0.0, false};
  bool reached = false;
  while (kept.count < count && !reached) {
    kept.sum += weight_of(keys[kept.count++]);
    reached = cuts.top_p < 1.0 && kept.sum >= cuts.top_p * total;
  }
  kept.certain = reached || kept.count == cuts.top_k;
  return kept;
}

// Sorts the weights of at least `floor`, at most top_k of them, to the front of the keys.
int64_t Sampler::sort_candidates(int64_t n, float floor, const Cuts& cuts,
                                 Scratch& scratch) const {
  const int64_t found =
      kernels_.collect_at_least(scratch.weights.data(), n, floor, scratch.ids.data());
  uint64_t* keys = scratch.keys.data();
  for (int64_t i = 0; i < found; ++i) {
    const int32_t id = scratch.ids[static_cast<size_t>(i)];
    keys[i] = key_of(scratch.weights[static_cast<size_t>(id)], id);
  }
  const int64_t count = std::min(found, cuts.top_k);
  if (count < found) std::nth_element(keys, keys + count, keys + found, std::greater<>());
  std::sort(keys, keys + count, std::greater<>());
  return count;
}

double Sampler::total_at_least(int64_t n, float floor, Scratch& scratch) const {
  kernels_.sums_at_least(scratch.weights.data(), n, floor, scratch.sums.data());
  return total_of(scratch.sums, n);
}

// Weights are relative to the largest, which is 1. Only candidates above a bound are sorted; they
// are a prefix of the order of all, so where the bound lies shows in the time alone.
int32_t Sampler::choose_with_cuts(int64_t n, const Cuts& cuts, double uniform,
                                  Scratch& scratch) const {
  // The smallest positive weight: what weighs nothing is never kept.
  const float least = std::max(cuts.min_p, std::numeric_limits<float>::denorm_min());
  const bool top_k = cuts.top_k < n;
  double total = top_k ? 0.0 : total_at_least(n, least, scratch);
  const uint64_t* keys = scratch.keys.data();
  Kept kept{};
  for (float floor = kFirstFloor; !kept.certain; floor *= kFloorFactor) {
    const bool all = floor <= least;
    // A pass over the weights is cheaper than sorting too few of them.
    if (!all && !top_k && total_at_least(n, floor, scratch) < cuts.top_p * total) continue;
    const int64_t count = sort_candidates(n, all ? least : floor, cuts, scratch);
    if (!all && top_k && count < cuts.top_k) continue;
    // Shares are of what top-k leaves.
    if (top_k) {
      total = std::accumulate(keys, keys + count, 0.0, [](double sum, uint64_t key) {
        return sum + weight_of(key);
      });
    }
    kept = keep(keys, count, total, cuts);
    kept.certain = kept.certain || all;
  }
  double running = 0.0;
  for (int64_t i = 0; i < kept.count; ++i) {
    running += weight_of(keys[i]);
    if (running > uniform * kept.sum) return id_of(keys[i]);
  }
  return id_of(keys[kept.count - 1]);
}

}  // namespace treadle

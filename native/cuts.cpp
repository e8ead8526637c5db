// Choosing among the tokens that top-k, top-p and min-p leave.
//
// Only candidates above a bound are looked at; they are a prefix of the order of all, so where the
// bound lies shows in the time alone. Without top-k they are not sorted but put in buckets by weight,
// and sorted are the two buckets in which something is decided.
#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <numeric>

#include "sampling.hpp"

namespace treadle {
namespace {

// Candidates are first looked for among weights of at least this; then the bound falls by the factor
// until the cut is certain.
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

size_t bucket_of(float weight, int shift) {
  return (std::bit_cast<uint32_t>(1.0f) - std::bit_cast<uint32_t>(weight)) >> shift;
}

// The first of sorted keys at which the running sum exceeds `target`, else the last.
int32_t pick(const uint64_t* keys, int64_t count, double running, double target) {
  for (int64_t i = 0; i < count; ++i) {
    running += weight_of(keys[i]);
    if (running > target) return id_of(keys[i]);
  }
  return id_of(keys[count - 1]);
}

}  // namespace

double Sampler::total_at_least(int64_t n, float floor, Scratch& scratch) const {
  kernels_.sums_at_least(scratch.weights.data(), n, floor, scratch.sums.data());
  return total_of(scratch.sums, n);
}

int64_t Sampler::collect(int64_t n, float floor, Scratch& scratch) const {
  return kernels_.collect_at_least(scratch.weights.data(), n, floor, scratch.ids.data());
}

// Sorts the candidates of one bucket to the front of the keys; how many they are.
int64_t Sampler::sort_bucket(size_t bucket, int64_t count, Scratch& scratch) {
  uint64_t* keys = scratch.keys.data();
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t id = scratch.ids[static_cast<size_t>(i)];
    const float weight = scratch.weights[static_cast<size_t>(id)];
    keys[found] = key_of(weight, id);
    found += bucket_of(weight, kBucketShift) == bucket;
  }
  std::sort(keys, keys + found, std::greater<>());
  return found;
}

// Where the sum of the candidates, in order, reaches `target`; their end if it does not. Leaves the
// bucket sums, and the end's bucket sorted.
Sampler::End Sampler::end_of(int64_t count, size_t buckets, double target, Scratch& scratch) {
  double* sums = scratch.bucket_sums.data();
  std::fill_n(sums, buckets, 0.0);
  for (int64_t i = 0; i < count; ++i) {
    const float weight = scratch.weights[static_cast<size_t>(scratch.ids[static_cast<size_t>(i)])];
    sums[bucket_of(weight, kBucketShift)] += weight;
  }
  // The first holds the largest weight.
  while (sums[buckets - 1] == 0.0) --buckets;
  End end{0, 0, 0.0, false};
  while (end.bucket + 1 < buckets && end.sum + sums[end.bucket] < target) {
    end.sum += sums[end.bucket++];
  }
  end.reached = end.sum + sums[end.bucket] >= target;
  // In another order a bucket's sum may round to less: then all of it is kept.
  const int64_t sorted = sort_bucket(end.bucket, count, scratch);
  do {
    end.sum += weight_of(scratch.keys[static_cast<size_t>(end.keys++)]);
  } while (end.keys < sorted && end.sum < target);
  return end;
}

int32_t Sampler::choose_with_cuts(int64_t n, const Cuts& cuts, double uniform,
                                  Scratch& scratch) const {
  // The smallest positive weight: what weighs nothing is never kept.
  const float least = std::max(cuts.min_p, std::numeric_limits<float>::denorm_min());
  const double total = cuts.min_p > 0.0f ? total_at_least(n, least, scratch)
                                         : total_of(scratch.sums, n);
  // Nothing is past all.
  const double target = cuts.top_p < 1.0 ? cuts.top_p * total
                                         : std::numeric_limits<double>::infinity();
  End end{};
  int64_t count = 0;
  for (float floor = kFirstFloor;; floor *= kFloorFactor) {
    const bool all = floor <= least;
    if (!all && total_at_least(n, floor, scratch) < target) continue;
    const float bound = all ? least : floor;
    count = collect(n, bound, scratch);
    end = end_of(count, bucket_of(bound, kBucketShift) + 1, target, scratch);
    if (all || end.reached) break;
  }
  const double wanted = uniform * end.sum;
  double running = 0.0;
  size_t bucket = 0;
  while (bucket < end.bucket && running + scratch.bucket_sums[bucket] <= wanted) {
    running += scratch.bucket_sums[bucket++];
  }
  const int64_t keys =
      bucket == end.bucket ? end.keys : sort_bucket(bucket, count, scratch);
  return pick(scratch.keys.data(), keys, running, wanted);
}

int32_t Sampler::choose_with_top_k(int64_t n, const Cuts& cuts, double uniform,
                                   Scratch& scratch) const {
  const float least = std::max(cuts.min_p, std::numeric_limits<float>::denorm_min());
  float bound = kFirstFloor;
  int64_t found = 0;
  for (;; bound *= kFloorFactor) {
    bound = std::max(bound, least);
    found = collect(n, bound, scratch);
    if (found >= cuts.top_k || bound == least) break;
  }
  uint64_t* keys = scratch.keys.data();
  for (int64_t i = 0; i < found; ++i) {
    const int32_t id = scratch.ids[static_cast<size_t>(i)];
    keys[i] = key_of(scratch.weights[static_cast<size_t>(id)], id);
  }
  const int64_t count = std::min(found, cuts.top_k);
  if (count < found) std::nth_element(keys, keys + count, keys + found, std::greater<>());
  std::sort(keys, keys + count, std::greater<>());
  // Shares are of what top-k leaves.
  const double total =
      std::accumulate(keys, keys + count, 0.0,
                      [](double sum, uint64_t key) { return sum + weight_of(key); });
  double sum = 0.0;
  int64_t kept = 0;
  while (kept < count && (kept == 0 || cuts.top_p >= 1.0 || sum < cuts.top_p * total)) {
    sum += weight_of(keys[kept++]);
  }
  return pick(keys, kept, 0.0, uniform * sum);
}

}  // namespace treadle

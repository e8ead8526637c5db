#include "peaks.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

namespace treadle {
namespace {

constexpr int kRepeats = 5;
// Long enough for workers to have woken.
constexpr int64_t kRounds = 1 << 20;

}  // namespace

double measure_peak(Backend& backend, Unit unit) {
  using Clock = std::chrono::steady_clock;
  const auto work = unit == Unit::kBytes ? backend.kernels.byte_peak : backend.kernels.float_peak;
  std::vector<int64_t> done(static_cast<size_t>(backend.threads()));
  return backend.with_pool([&](Pool& pool) {
    double best = 0;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      const auto began = Clock::now();
      pool.each(pool.threads(), [&](int64_t piece, int) {
        float sink[kLanes];
        done[static_cast<size_t>(piece)] = work(kRounds, sink);
      });
      const std::chrono::duration<double> took = Clock::now() - began;
      int64_t operations = 0;
      for (const int64_t each : done) operations += each;
      best = std::max(best, static_cast<double>(operations) / took.count());
    }
    return best;
  });
}

}  // namespace treadle

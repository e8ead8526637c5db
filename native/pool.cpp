#include "pool.hpp"

#include <sched.h>

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace treadle {
namespace {

using Clock = std::chrono::steady_clock;

// How long a thread without work spins, then yields, before it sleeps. Spinning longer takes the
// core from others; sleeping earlier costs a wake-up between the ops of one step.
constexpr std::chrono::microseconds kSpin{2};
constexpr std::chrono::microseconds kYield{50};

void pause_core() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// One turn of waiting, `waited` after its start.
void wait_a_turn(Clock::duration waited) {
  if (waited >= kSpin) {
    sched_yield();
    return;
  }
  for (int i = 0; i < 4; ++i) pause_core();
}

constexpr uint64_t pack(uint64_t front, uint64_t back) { return front | back << 32; }
constexpr uint64_t front_of(uint64_t range) { return range & 0xffffffff; }
constexpr uint64_t back_of(uint64_t range) { return range >> 32; }

}  // namespace

Pool::Pool(int threads) {
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back(&Pool::work, this, i);
  } catch (...) {
    close();
    throw;
  }
}

Pool::~Pool() { close(); }

void Pool::close() {
  {
    const std::lock_guard lock(mutex_);
    stopping_.store(true);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

bool Pool::has_pieces() const {
  const uint64_t range = unclaimed_.load();
  return front_of(range) < back_of(range);
}

int64_t Pool::claim_front() {
  uint64_t range = unclaimed_.load(std::memory_order_relaxed);
  while (front_of(range) < back_of(range)) {
    if (unclaimed_.compare_exchange_weak(range, pack(front_of(range) + 1, back_of(range)))) {
      return static_cast<int64_t>(front_of(range));
    }
  }
  return -1;
}

int64_t Pool::claim_back() {
  uint64_t range = unclaimed_.load(std::memory_order_relaxed);
  while (front_of(range) < back_of(range)) {
    if (unclaimed_.compare_exchange_weak(range, pack(front_of(range), back_of(range) - 1))) {
      return static_cast<int64_t>(back_of(range)) - 1;
    }
  }
  return -1;
}

void Pool::run(int64_t pieces, PieceFunction function, void* context) {
  if (pieces <= 1 || workers_.empty()) {
    for (int64_t piece = 0; piece < pieces; ++piece) function(context, piece, 0);
    return;
  }
  function_ = function;
  context_ = context;
  done_by_workers_.store(0, std::memory_order_relaxed);
  unclaimed_.store(pack(0, static_cast<uint64_t>(pieces)));
  // Either this load sees the sleeper, or the sleeper's last look sees the pieces.
  if (sleeping_.load() > 0) {
    { const std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  int64_t own = 0;
  for (int64_t piece = claim_front(); piece >= 0; piece = claim_front()) {
    function(context, piece, 0);
    ++own;
  }
  if (done_by_workers_.load(std::memory_order_acquire) == pieces - own) return;
  const Clock::time_point start = Clock::now();
  while (done_by_workers_.load(std::memory_order_acquire) != pieces - own) {
    wait_a_turn(Clock::now() - start);
  }
}

void Pool::work(int thread) {
  const PlainFloats floats;
  for (;;) {
    const int64_t piece = claim_back();
    if (piece >= 0) {
      function_(context_, piece, thread);
      done_by_workers_.fetch_add(1, std::memory_order_release);
    } else if (!wait_for_pieces()) {
      return;
    }
  }
}

// False when the pool closes.
bool Pool::wait_for_pieces() {
  const Clock::time_point start = Clock::now();
  for (Clock::duration waited{}; waited < kYield; waited = Clock::now() - start) {
    if (has_pieces()) return true;
    if (stopping_.load(std::memory_order_relaxed)) return false;
    wait_a_turn(waited);
  }
  std::unique_lock lock(mutex_);
  sleeping_.fetch_add(1);
  wake_.wait(lock, [this] { return has_pieces() || stopping_.load(); });
  sleeping_.fetch_sub(1);
  return !stopping_.load();
}

#if defined(__x86_64__)
PlainFloats::PlainFloats() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
PlainFloats::~PlainFloats() { _mm_setcsr(saved_); }
#else
PlainFloats::PlainFloats() : saved_(0) {}
PlainFloats::~PlainFloats() { static_cast<void>(saved_); }
#endif

}  // namespace treadle

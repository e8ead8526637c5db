#include "pool.hpp"

#include <sched.h>

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace treadle {
namespace {

// How long a thread without work spins, then yields, before it sleeps. Spinning longer takes the
// core from others; sleeping earlier costs a wake-up between the ops of one step.
constexpr std::chrono::microseconds kSpin{2};
constexpr std::chrono::microseconds kYield{50};

// A worker is late when the caller has waited for so long, and for so many times what a piece takes.
constexpr std::chrono::microseconds kLate{150};
constexpr int kLatePieces = 4;
// About a turn of those it shares the core with.
constexpr std::chrono::milliseconds kRest{3};

void pause_core() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// One turn of waiting, `waited` after its start.
void wait_a_turn(std::chrono::steady_clock::duration waited) {
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
  const Clock::time_point began = Clock::now();
  function_ = function;
  context_ = context;
  done_by_workers_.store(0, std::memory_order_relaxed);
  late_after_.store(Clock::time_point::max(), std::memory_order_relaxed);
  unclaimed_.store(pack(0, static_cast<uint64_t>(pieces)));
  // Either this load sees the sleeper, or the sleeper's last look sees the pieces.
  if (sleeping_.load() > 0) wake_workers();
  int64_t own = 0;
  for (int64_t piece = claim_front(); piece >= 0; piece = claim_front()) {
    function(context, piece, 0);
    ++own;
  }
  if (done_by_workers_.load(std::memory_order_acquire) == pieces - own) return;
  wait_for_workers(pieces - own, (Clock::now() - began) / (own + 1));
}

// Until they have finished `pieces`, of which one usually takes `usual`.
void Pool::wait_for_workers(int64_t pieces, Clock::duration usual) {
  const Clock::time_point start = Clock::now();
  late_after_.store(start + std::max<Clock::duration>(kLate, kLatePieces * usual),
                    std::memory_order_relaxed);
  while (done_by_workers_.load(std::memory_order_acquire) != pieces) {
    wait_a_turn(Clock::now() - start);
  }
}

void Pool::rouse() {
  if (sleeping_.load() == 0) return;
  {
    const std::lock_guard lock(mutex_);
    roused_ = true;
  }
  wake_.notify_all();
}

void Pool::wake_workers() {
  { const std::lock_guard lock(mutex_); }
  wake_.notify_all();
}

void Pool::work(int thread) {
  const PlainFloats floats;
  for (;;) {
    const int64_t piece = claim_back();
    if (piece >= 0) {
      function_(context_, piece, thread);
      const Clock::time_point late_after = late_after_.load(std::memory_order_relaxed);
      done_by_workers_.fetch_add(1, std::memory_order_release);
      if (late_after != Clock::time_point::max() && Clock::now() > late_after) rest();
    } else if (!wait_for_pieces()) {
      return;
    }
  }
}

// Nobody waits for a worker that has no piece, so it need not be woken but to end.
void Pool::rest() {
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, kRest, [this] { return stopping_.load(); });
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
  wake_.wait(lock, [this] { return has_pieces() || roused_ || stopping_.load(); });
  sleeping_.fetch_sub(1);
  if (sleeping_.load() == 0) roused_ = false;
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

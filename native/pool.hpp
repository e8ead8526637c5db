// A persistent pool of threads for work cut in pieces.
//
// The caller takes part. Pieces are claimed one by one, by the caller from the front and by workers
// from the back, so a thread that loses its core holds up the piece it has and nothing else; the
// caller waits for claimed pieces, never for a thread.
//
// A worker that shares its core with others is stopped in the middle of a piece sooner or later, and
// the caller waits for as long as the others take. A worker that was so late rests: it sleeps without
// a piece while the others have their turn, and has a claim to the core when it comes back.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace treadle {

// Works on one piece; `thread` is below Pool::threads() and belongs to nobody else meanwhile.
using PieceFunction = void (*)(void* context, int64_t piece, int thread);

class Pool {
 public:
  // Starts threads - 1 workers.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls function(context, piece, thread) for each piece. One caller at a time.
  void run(int64_t pieces, PieceFunction function, void* context);

  // The same for any callable void(int64_t piece, int thread).
  template <class Callable>
  void each(int64_t pieces, Callable&& callable) {
    run(
        pieces,
        [](void* context, int64_t piece, int thread) {
          (*static_cast<std::remove_reference_t<Callable>*>(context))(piece, thread);
        },
        &callable);
  }

  // Work is about to come: workers that sleep wake up meanwhile.
  void rouse();

  // Ends and joins the workers. Later runs use the caller alone.
  void close();

 private:
  using Clock = std::chrono::steady_clock;

  void work(int thread);
  bool wait_for_pieces();
  void wait_for_workers(int64_t pieces, Clock::duration usual);
  void rest();
  void wake_workers();
  bool has_pieces() const;
  int64_t claim_front();
  int64_t claim_back();

  // The pieces nobody has claimed yet, [front, back): front in the low half, back in the high one.
  // A claim of a later job's piece through a stale value is valid, as whoever claims reads the job
  // after the claim and no job is replaced while a claimed piece is unfinished.
  alignas(64) std::atomic<uint64_t> unclaimed_{0};
  alignas(64) std::atomic<int64_t> done_by_workers_{0};
  // When a worker that has not finished its piece is late; known once the caller waits.
  std::atomic<Clock::time_point> late_after_{Clock::time_point::max()};
  alignas(64) std::atomic<int> sleeping_{0};
  std::atomic<bool> stopping_{false};
  bool roused_ = false;
  PieceFunction function_ = nullptr;
  void* context_ = nullptr;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

// Rounding to nearest and subnormals kept for as long as it lives, whatever the calling thread had
// set: results must not depend on who calls.
class PlainFloats {
 public:
  PlainFloats();
  ~PlainFloats();
  PlainFloats(const PlainFloats&) = delete;
  PlainFloats& operator=(const PlainFloats&) = delete;

 private:
  unsigned saved_;
};

}  // namespace treadle

// What the programs, the packing and the sampling of one backend share: its kernels and threads.
#pragma once

#include <unistd.h>

#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include "pool.hpp"
#include "variants.hpp"

namespace treadle {

class Backend {
 public:
  Backend(const std::string& isa, int threads) : kernels(find_variant(isa)), pool_(threads) {}

  const Kernels& kernels;

  int threads() const { return pool_.threads(); }

  // Calls work(pool) with the pool to itself. Python threads may call at once; they take turns.
  template <class Work>
  auto with_pool(Work&& work) {
    const std::lock_guard turn(turn_);
    if (closed_) throw std::runtime_error("the backend is closed");
    const PlainFloats floats;
    return work(pool_);
  }

  void close() {
    const std::lock_guard turn(turn_);
    closed_ = true;
    pool_.close();
  }

 private:
  std::mutex turn_;
  bool closed_ = false;
  Pool pool_;
};

// A forked child has the backend's memory, but not its threads: taking it apart there would wait for
// them for ever, so the child leaves it be.
inline std::shared_ptr<Backend> make_backend(const std::string& isa, int threads) {
  return {new Backend(isa, threads), [maker = getpid()](Backend* backend) {
            if (getpid() == maker) delete backend;
          }};
}

}  // namespace treadle

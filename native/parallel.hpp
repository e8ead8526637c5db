// How work is cut for the pool. Cuts are made for speed alone: no cut changes a result.
#pragma once

#include <algorithm>

#include "pool.hpp"
#include "types.hpp"

namespace treadle {

// Work, in multiply-adds or about as costly steps, below which an item of its own is not worth the
// claim, and items per thread beyond which finer ones balance no better.
inline constexpr int64_t kMinItemWork = 48 * 1024;
inline constexpr int64_t kItemsPerThread = 8;

// Calls work(first, last, thread) on ranges of rows, as many as their work is worth.
template <class Work>
void each_row_on_thread(Pool& pool, int64_t rows, int64_t width, Work&& work) {
  if (rows == 0) return;
  // A value costs several steps.
  const int64_t by_work = std::max<int64_t>(rows * width * 8 / kMinItemWork, 1);
  const int64_t step = ceil_div(rows, std::min({rows, by_work, kItemsPerThread * pool.threads()}));
  pool.each(ceil_div(rows, step), [&](int64_t item, int thread) {
    work(item * step, std::min(rows, (item + 1) * step), thread);
  });
}

// The same without the thread.
template <class Work>
void each_row(Pool& pool, int64_t rows, int64_t width, Work&& work) {
  each_row_on_thread(pool, rows, width,
                     [&](int64_t first, int64_t last, int) { work(first, last); });
}

}  // namespace treadle

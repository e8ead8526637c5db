// How work is cut for the pool. Cuts are made for speed alone: no cut changes a result.
#pragma once

#include <algorithm>

#include "pool.hpp"
#include "types.hpp"

namespace treadle {

// Work, in multiply-adds or about as costly steps, below which an item of its own is not worth the
// claim, and items per thread beyond which finer ones balance no better.
inline constexpr int64_t kMinItemWork = 48 * 1024;
inline constexpr int64_t kItemsPerThread = 16;

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

// Values of a row kernel below which an item of its own is not worth the claim.
inline constexpr int64_t kMinItemValues = 6 * 1024;

// Whether an item may take some columns of its rows: not where it reads all of them.
enum class Cut { kRows, kRowsAndColumns };

// Calls work(region) on all of `rows` rows of `width` columns, in regions of whole row tiles; of
// few rows, in pieces of them. Regions go by rows, so that the pool, which hands them out from both
// ends, gives each thread rows next to each other: of the same rows in each op of a step.
template <class Work>
void each_region(Pool& pool, int64_t rows, int64_t width, Cut cut, Work&& work) {
  if (rows == 0) return;
  const int64_t tiles = ceil_div(rows, kRowTile);
  const int64_t wanted = std::clamp<int64_t>(rows * width / kMinItemValues, 1,
                                             kItemsPerThread * pool.threads());
  const int64_t row_step = ceil_div(tiles, std::min(tiles, wanted)) * kRowTile;
  const int64_t pieces = cut == Cut::kRows ? 1 : std::max<int64_t>(wanted / tiles, 1);
  const int64_t column_step = round_up(ceil_div(width, pieces), kQuantBlock);
  const int64_t column_items = ceil_div(width, column_step);
  pool.each(ceil_div(rows, row_step) * column_items, [&](int64_t item, int) {
    const int64_t row = item / column_items * row_step;
    const int64_t column = item % column_items * column_step;
    work(Region{row, std::min(rows, row + row_step), column, std::min(width, column + column_step)});
  });
}

}  // namespace treadle

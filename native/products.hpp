// Products of activations with parts of matrices, spread over the pool.
#pragma once

#include <functional>

#include "parallel.hpp"

namespace treadle {

// Rows [first_row, last_row) times one part; first_row begins a row tile. How it is cut is filled
// in by run_products.
struct Product {
  LinearArgs args;
  int64_t first_row;
  int64_t last_row;

  int64_t row_step = 0;
  int64_t row_items = 0;
  int64_t panel_step = 0;
  int64_t panel_items = 0;
  int64_t first_item = 0;
};

// One piece of a product, ranges being [first, last).
struct ProductItem {
  const LinearArgs& args;
  int64_t first_panel;
  int64_t last_panel;
  int64_t first_row;
  int64_t last_row;
};

// Cuts products that do not depend on each other, and calls work(item, thread) on every piece.
void each_item(Pool& pool, Product* products, int64_t count,
               const std::function<void(const ProductItem&, int)>& work);

// Runs products that do not depend on each other, all at once.
void run_products(Pool& pool, const Kernels& kernels, Product* products, int64_t count);

}  // namespace treadle

#include "products.hpp"

namespace treadle {
namespace {

// Columns and rows of one item of a large product: its weights stay in the second-level cache while
// the rows pass, and its rows while the columns do.
constexpr int64_t kMaxItemPanels = 16;
constexpr int64_t kMaxItemRows = 128;
// From this many rows on, weights are used often enough that fetching them ahead gains nothing.
constexpr int64_t kStreamRows = 64;

int64_t work_of(const Product& p) {
  return p.args.part.panels * p.args.part.k * kLanes * (p.last_row - p.first_row);
}

// By whole row tiles and by columns, never along K. Returns the number of items.
int64_t cut(Product& p, int64_t item_work, int threads) {
  const int64_t rows = p.last_row - p.first_row;
  const int64_t panels = p.args.part.panels;
  p.args.stream = rows <= kStreamRows;
  p.row_step = std::min(kMaxItemRows, round_up(ceil_div(rows, threads), kRowTile));
  p.row_items = ceil_div(rows, p.row_step);
  const int64_t wanted = std::max<int64_t>(work_of(p) / item_work, 1);
  p.panel_step = ceil_div(panels * p.row_items, wanted);
  if (is_float(p.args.part.type) && p.panel_step > 4) p.panel_step = round_up(p.panel_step, 4);
  if (p.row_items > 1) p.panel_step = std::min(p.panel_step, kMaxItemPanels);
  p.panel_items = ceil_div(panels, p.panel_step);
  return p.panel_items * p.row_items;
}

// The pool hands items out from both ends. Those from the back are turned round, so that every
// thread goes up through the weights, as the kernels fetch them ahead.
int64_t place_of(int64_t item, int64_t items, int threads) {
  const int64_t front = items / threads;
  return item < front ? item : front + items - 1 - item;
}

ProductItem item_of(const Product& p, int64_t item) {
  const int64_t panel = item % p.panel_items * p.panel_step;
  const int64_t row = p.first_row + item / p.panel_items * p.row_step;
  return {p.args, panel, std::min(p.args.part.panels, panel + p.panel_step), row,
          std::min(p.last_row, row + p.row_step)};
}

}  // namespace

void each_item(Pool& pool, Product* products, int64_t count,
               const std::function<void(const ProductItem&, int)>& work) {
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) total += work_of(products[i]);
  const int64_t item_work = std::max(kMinItemWork, total / (kItemsPerThread * pool.threads()));
  int64_t items = 0;
  for (int64_t i = 0; i < count; ++i) {
    products[i].first_item = items;
    items += cut(products[i], item_work, pool.threads());
  }
  pool.each(items, [&](int64_t piece, int thread) {
    const int64_t item = place_of(piece, items, pool.threads());
    const Product* after =
        std::upper_bound(products, products + count, item,
                         [](int64_t i, const Product& p) { return i < p.first_item; });
    work(item_of(after[-1], item - after[-1].first_item), thread);
  });
}

void run_products(Pool& pool, const Kernels& kernels, Product* products, int64_t count) {
  each_item(pool, products, count, [&](const ProductItem& item, int) {
    kernels.linear[static_cast<size_t>(item.args.part.type)](
        item.args, item.first_panel, item.last_panel, item.first_row, item.last_row);
  });
}

}  // namespace treadle

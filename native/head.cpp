#include "head.hpp"

#include <cstring>
#include <limits>

namespace treadle {
namespace {

// Columns of a strip: with the rows of a decode step, half of the first cache.
constexpr int64_t kStripPanels = 8;
constexpr int64_t kStripColumns = kStripPanels * kLanes;

// Per logit that is capped.
constexpr int64_t kCapOperations = 3;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Panels [first, last) of a part, as a part of a matrix of their own.
Part panels_of(const Part& part, int64_t first, int64_t last) {
  Part some = part;
  some.data += first * part.panel_bytes;
  some.panels = last - first;
  some.n = std::min(some.panels * kLanes, part.n - first * kLanes);
  some.column = 0;
  return some;
}

}  // namespace

Head::Head(const Kernels& kernels, const HeadArgs& args, const Matrix& matrix, int64_t max_rows,
           int threads)
    : kernels_(kernels),
      args_(args),
      matrix_(matrix),
      max_rows_(max_rows),
      strips_(threads * max_rows * kStripColumns),
      bests_(static_cast<size_t>(threads), std::vector<Best>(static_cast<size_t>(max_rows))) {}

std::vector<Product> Head::products(int64_t rows) const {
  std::vector<Product> products;
  for (const Part& part : matrix_.parts) {
    const LinearArgs args{part,    args_.x, args_.logits.values, args_.logits.stride,
                          nullptr, false,   false};
    products.push_back({args, 0, rows});
  }
  return products;
}

void Head::run(Pool& pool, int64_t logits, int64_t likeliest) {
  const int64_t rows = logits + likeliest;
  if (rows == 0) return;
  std::vector<Product> parts = products(rows);
  const int64_t count = static_cast<int64_t>(parts.size());
  if (likeliest == 0 && args_.cap == 0.0f) {
    run_products(pool, kernels_, parts.data(), count);
    return;
  }
  for (std::vector<Best>& bests : bests_) {
    std::fill_n(bests.begin(), rows, Best{-kInfinity, kNoToken});
  }
  each_item(pool, parts.data(), count,
            [&](const ProductItem& item, int thread) { pass(item, logits, thread); });
  for (int64_t row = logits; row < rows; ++row) {
    Best best{-kInfinity, kNoToken};
    for (const std::vector<Best>& bests : bests_) {
      const Best& other = bests[static_cast<size_t>(row)];
      if (other.token == kNoToken) continue;
      const bool equal = other.logit == best.logit;
      if (equal ? other.token < best.token : other.logit > best.logit) best = other;
    }
    args_.likeliest[row - logits] = best.token;
  }
}

int64_t Head::bytes() const {
  const int64_t row = kStripColumns * static_cast<int64_t>(sizeof(float)) +
                      static_cast<int64_t>(sizeof(Best));
  return static_cast<int64_t>(bests_.size()) * max_rows_ * row;
}

Cost Head::cost(int64_t logits, int64_t likeliest) const {
  const int64_t rows = logits + likeliest;
  if (rows == 0) return {};
  Cost all{};
  for (const Product& product : products(rows)) all += linear_cost(product.args, rows);
  // What is kept of them is a token each.
  all.activation_bytes -=
      likeliest * (args_.logits.width * static_cast<int64_t>(sizeof(float)) -
                   static_cast<int64_t>(sizeof(int32_t)));
  if (args_.cap > 0.0f) all.operations += rows * args_.logits.width * kCapOperations;
  return all;
}

void Head::pass(const ProductItem& item, int64_t logits, int thread) {
  float* strip = strips_.get() + thread * max_rows_ * kStripColumns;
  LinearArgs args = item.args;
  args.out = strip;
  args.out_stride = kStripColumns;
  for (int64_t panel = item.first_panel; panel < item.last_panel; panel += kStripPanels) {
    args.part = panels_of(item.args.part, panel, std::min(item.last_panel, panel + kStripPanels));
    kernels_.linear[static_cast<size_t>(args.part.type)](args, 0, args.part.panels, item.first_row,
                                                         item.last_row);
    const int64_t column = item.args.part.column + panel * kLanes;
    const int64_t columns = args.part.n;
    if (args_.cap > 0.0f) {
      const Activations values{strip, kStripColumns, nullptr, columns, true, false};
      kernels_.softcap({values, args_.cap}, {item.first_row, item.last_row, 0, columns});
    }
    for (int64_t row = item.first_row; row < item.last_row; ++row) {
      const float* x = strip + row * kStripColumns;
      if (row < logits) {
        std::memcpy(args_.logits.values + row * args_.logits.stride + column, x,
                    static_cast<size_t>(columns) * sizeof(float));
      } else {
        take_row(x, column, columns, bests_[static_cast<size_t>(thread)][static_cast<size_t>(row)]);
      }
    }
  }
}

// A thread's strips come in any order.
void Head::take_row(const float* strip, int64_t column, int64_t columns, Best& best) const {
  const float largest = kernels_.largest(strip, columns);
  const bool ties = largest == best.logit && column < best.token;
  if (!(largest > best.logit || ties)) return;
  best = {largest, static_cast<int32_t>(column + kernels_.first_equal(strip, columns, largest))};
}

}  // namespace treadle

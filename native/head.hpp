// The last product of a forward pass: logits of the rows that want them, of the others nothing but
// the likeliest token.
//
// Columns pass in strips that stay in the first cache, so logits that nobody wants never reach
// memory. A logit has one arithmetic whichever it is.
#pragma once

#include <vector>

#include "aligned_array.hpp"
#include "cost.hpp"
#include "products.hpp"

namespace treadle {

// Chosen where no logit is above -inf.
constexpr int32_t kNoToken = -1;

struct HeadArgs {
  Activations x;
  Activations logits;
  float cap;           // logits become cap * tanh(logit / cap); 0 leaves them
  int32_t* likeliest;  // [rows that want no logits]
};

class Head {
 public:
  // `matrix` has one part at least.
  Head(const Kernels& kernels, const HeadArgs& args, const Matrix& matrix, int64_t max_rows,
       int threads);

  // Of the first `logits` rows logits are written, of the `likeliest` rows behind them tokens. Ties
  // go to the lowest id; NaN never wins.
  void run(Pool& pool, int64_t logits, int64_t likeliest);

  Cost cost(int64_t logits, int64_t likeliest) const;

  // What it holds beside its arguments.
  int64_t bytes() const;

 private:
  // The best of the logits that one thread has seen of a row.
  struct Best {
    float logit;
    int32_t token;
  };

  std::vector<Product> products(int64_t rows) const;
  void pass(const ProductItem& item, int64_t logits, int thread);
  void take_row(const float* strip, int64_t column, int64_t columns, Best& best) const;

  const Kernels& kernels_;
  HeadArgs args_;
  Matrix matrix_;
  int64_t max_rows_;
  // Per thread: a strip of every row, and the best of every row.
  AlignedArray<float> strips_;
  std::vector<std::vector<Best>> bests_;
};

}  // namespace treadle

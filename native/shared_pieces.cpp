#include "shared_pieces.hpp"

#include <algorithm>

#include "types.hpp"

namespace treadle {
namespace {

// Fewer pieces are not worth the records that rows leave of them.
constexpr int32_t kFewest = 2;

int32_t common_pieces(const StepRows& rows, int32_t a, int32_t b, int32_t most) {
  const int64_t blocks = ceil_div(most * kPiece, rows.block_size);
  const int32_t* first = rows.blocks(a);
  const auto differ = std::mismatch(first, first + blocks, rows.blocks(b)).first;
  const int64_t equal = differ - first;
  return static_cast<int32_t>(std::min<int64_t>(equal * rows.block_size / kPiece, most));
}

}  // namespace

SharedPieces::SharedPieces(int64_t max_rows) {
  const auto rows = static_cast<size_t>(max_rows);
  candidates_.reserve(rows);
  groups_.reserve(rows);
  members_.reserve(rows);
  of_.resize(rows);
}

void SharedPieces::clear() {
  groups_.clear();
  members_.clear();
  std::fill(of_.begin(), of_.end(), 0);
}

void SharedPieces::find(const StepRows& rows, int64_t window, int64_t most_tokens) {
  clear();
  candidates_.clear();
  const int64_t telling = ceil_div(kFewest * kPiece, rows.block_size) - 1;
  for (int32_t row = 0; row < rows.rows; ++row) {
    const int32_t tokens = rows.tokens(row);
    if (tokens == 0 || tokens >= most_tokens) continue;
    const auto whole = static_cast<int32_t>((rows.first_position(row) + 1) / kPiece);
    if (whole < kFewest || first_seen(rows.last_position(row), window) > 0) continue;
    candidates_.push_back({rows.blocks(row)[telling], row, whole, 0});
  }
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    return a.block != b.block ? a.block < b.block : a.row < b.row;
  });
  for (size_t first = 0; first < candidates_.size();) {
    size_t last = first + 1;
    while (last < candidates_.size() && candidates_[last].block == candidates_[first].block) ++last;
    take_group(rows, first, last);
    first = last;
  }
}

// Cuts groups from candidates that probably share something: each time a row leads, and those join
// that share at least half as much with it as any does.
void SharedPieces::take_group(const StepRows& rows, size_t first, size_t last) {
  while (last - first >= 2) {
    Candidate& leader = candidates_[first];
    int32_t best = 0;
    for (size_t i = first + 1; i < last; ++i) {
      Candidate& other = candidates_[i];
      other.common =
          common_pieces(rows, leader.row, other.row, std::min(leader.whole, other.whole));
      best = std::max(best, other.common);
    }
    const int32_t least = std::max(ceil_div(best, 2), int64_t{kFewest});
    const auto joined = std::partition(
        candidates_.begin() + static_cast<int64_t>(first) + 1,
        candidates_.begin() + static_cast<int64_t>(last),
        [&](const Candidate& other) { return other.common >= least; });
    const auto end = static_cast<size_t>(joined - candidates_.begin());
    if (end - first >= 2) {
      int32_t pieces = best;
      for (size_t i = first + 1; i < end; ++i) pieces = std::min(pieces, candidates_[i].common);
      const auto begin = static_cast<int32_t>(members_.size());
      for (size_t i = first; i < end; ++i) {
        members_.push_back(candidates_[i].row);
        of_[static_cast<size_t>(candidates_[i].row)] = pieces;
      }
      groups_.push_back({begin, static_cast<int32_t>(members_.size()), pieces});
    }
    first = end;
  }
}

}  // namespace treadle

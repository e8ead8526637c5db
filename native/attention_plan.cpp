#include "attention_plan.hpp"

#include <algorithm>
#include <numeric>

namespace treadle {
namespace {

// Items per thread that a step should have at least, so that threads end together.
constexpr int64_t kItemsPerThread = 4;
// Fewer pieces are not worth an item of their own.
constexpr int64_t kMinPieces = 2;

int32_t piece_of(int64_t position) { return static_cast<int32_t>(position / kPiece); }

// Reading a piece costs about as much as a few tokens' work on it.
int64_t piece_cost(int64_t tokens) { return tokens + 2; }

}  // namespace

// Room to split one tile over all it may see, and for rows that share some of it. That is also the
// most a step gains from; a step that wants more goes without.
AttentionPlan::AttentionPlan(const AttentionShape& shape)
    : shape_(shape),
      partial_records_((shape.max_pieces() * tile_positions(shape.group()) + 4 * shape.max_rows) *
                       shape.heads),
      shared_(shape.max_rows),
      combine_of_(static_cast<size_t>(shape.max_tokens)) {
  // No run allocates: a split item takes at least the records of kMinPieces for one token, but for
  // the last item of each tile, and tiles are of a row's own tokens or of a group's.
  const int64_t splits = partial_records_ / (kMinPieces * shape.heads);
  const auto tokens = static_cast<size_t>(shape.max_tokens);
  items_.reserve(2 * tokens + static_cast<size_t>(splits));
  combines_.reserve(tokens);
  parts_.reserve(tokens);
  tokens_.reserve(2 * tokens);
  shared_tokens_.reserve(static_cast<size_t>(shape.max_rows));
}

// A step's tokens as they are, so that those of a row are named by their own index; then again
// those of each group of rows.
void AttentionPlan::list_tokens(const StepRows& rows) {
  tokens_.resize(static_cast<size_t>(num_tokens_));
  std::iota(tokens_.begin(), tokens_.end(), 0);
  shared_tokens_.clear();
  for (const SharingRows& group : shared_.groups()) {
    const auto first = static_cast<int32_t>(tokens_.size());
    const int32_t* members = shared_.members().data();
    for (int32_t m = group.first; m < group.last; ++m) {
      const int32_t end = rows.row_starts[members[m] + 1];
      for (int32_t t = rows.row_starts[members[m]]; t < end; ++t) tokens_.push_back(t);
    }
    const auto count = static_cast<int32_t>(tokens_.size()) - first;
    shared_tokens_.push_back(
        {members[group.first], first, count, 0, group.pieces, Part::kShared});
  }
}

// What rows share comes first, as the rest of their pieces is combined with it.
template <class Visit>
void AttentionPlan::each_tile(const StepRows& rows, Visit visit) const {
  const auto most = static_cast<int32_t>(tile_positions(shape_.group()));
  for (const Tile& shared : shared_tokens_) {
    for (int32_t done = 0; done < shared.count; done += most) {
      Tile tile = shared;
      tile.first += done;
      tile.count = std::min(most, shared.count - done);
      visit(tile);
    }
  }
  for (int32_t row = 0; row < rows.rows; ++row) {
    const int32_t shared = shared_.of(row);
    for (int32_t token = rows.row_starts[row]; token < rows.row_starts[row + 1]; token += most) {
      const int32_t count = std::min(most, rows.row_starts[row + 1] - token);
      const int32_t first = std::max(first_piece(rows.positions[token]), shared);
      const int32_t last = piece_of(rows.positions[token + count - 1]) + 1;
      const Part part = shared == 0 ? Part::kAll : Part::kRest;
      if (first < last) visit(Tile{row, token, count, first, last - first, part});
    }
  }
}

void AttentionPlan::make(const StepRows& rows) {
  items_.clear();
  combines_.clear();
  parts_.clear();
  used_records_ = 0;
  num_tokens_ = rows.row_starts[rows.rows];
  shared_.find(rows, shape_.window, tile_positions(shape_.group()));
  list_tokens(rows);
  std::fill_n(combine_of_.begin(), num_tokens_, -1);

  int64_t total = 0;
  each_tile(rows, [&](const Tile& tile) { total += piece_cost(tile.count) * tile.pieces; });
  const int64_t share = total * shape_.kv_heads / (kItemsPerThread * shape_.threads);
  const auto size_of = [&](const Tile& tile) -> int64_t {
    const int64_t most = std::max(share / piece_cost(tile.count), kMinPieces);
    if (shape_.threads == 1 || tile.pieces <= most) return tile.pieces;
    return ceil_div(tile.pieces, ceil_div(tile.pieces, most));
  };
  int64_t needed = 0;
  each_tile(rows, [&](const Tile& tile) {
    if (tile.part != Part::kAll) needed += records_of(tile, size_of(tile));
  });
  if (needed > partial_records_) {
    shared_.clear();
    list_tokens(rows);
  }
  each_tile(rows, [&](const Tile& tile) { add_tile(rows, tile, size_of(tile)); });
}

int32_t AttentionPlan::first_piece(int32_t position) const {
  return piece_of(first_seen(position, shape_.window));
}

// The first item of a token's pieces folds its own into one record.
int64_t AttentionPlan::records_of(const Tile& tile, int64_t size) const {
  const int64_t pieces = tile.part == Part::kRest ? tile.pieces : tile.pieces - size + 1;
  return pieces * tile.count * shape_.heads;
}

// Cuts a tile into items of `size` pieces, where the partials have room.
void AttentionPlan::add_tile(const StepRows& rows, const Tile& tile, int64_t size) {
  const int64_t stride = tile.count * shape_.heads;
  AttentionItem item{tile.row,         tile.first,      tile.count,   tile.first_piece,
                     tile.pieces, Result::kOutput, used_records_};
  const int64_t records = records_of(tile, size);
  if (tile.part == Part::kAll &&
      (size == tile.pieces || used_records_ + records > partial_records_)) {
    items_.push_back(item);
    return;
  }
  int32_t items = 0;
  for (int64_t done = 0; done < tile.pieces; done += size, ++items) {
    const bool folded = done == 0 && tile.part != Part::kRest;
    item.result = folded ? Result::kFolded : Result::kPieces;
    item.first_piece = static_cast<int32_t>(tile.first_piece + done);
    item.pieces = static_cast<int32_t>(std::min(size, tile.pieces - done));
    items_.push_back(item);
    item.partial += (folded ? 1 : item.pieces) * stride;
  }
  add_records(tile, size, items, rows.positions);
  used_records_ += records;
}

// Tells each of the tile's tokens where its records will be.
void AttentionPlan::add_records(const Tile& tile, int64_t size, int32_t items,
                                const int32_t* positions) {
  const int64_t stride = tile.count * shape_.heads;
  const auto record_of = [&](int64_t piece) {
    const int64_t place = std::min<int64_t>(piece - tile.first_piece, tile.pieces - 1);
    return tile.part == Part::kRest ? place : std::max<int64_t>(place - size + 1, 0);
  };
  for (int32_t i = 0; i < tile.count; ++i) {
    const int32_t token = tokens_[static_cast<size_t>(tile.first + i)];
    const auto combine = static_cast<size_t>(combine_for(token));
    parts_[combine] += items;
    const int32_t last = piece_of(positions[token]);
    if (last < tile.first_piece) continue;
    const int32_t first = std::max(first_piece(positions[token]), tile.first_piece);
    const int64_t begin = record_of(first);
    combines_[combine].runs[tile.part == Part::kRest ? 1 : 0] = {
        used_records_ + begin * stride + i * shape_.heads, stride,
        static_cast<int32_t>(record_of(last) - begin + 1)};
  }
}

int32_t AttentionPlan::combine_for(int32_t token) {
  int32_t& combine = combine_of_[static_cast<size_t>(token)];
  if (combine < 0) {
    combine = static_cast<int32_t>(combines_.size());
    combines_.push_back({token, {}});
    parts_.push_back(0);
  }
  return combine;
}

int64_t AttentionPlan::bytes() const {
  const auto size = [](const auto& list) {
    return static_cast<int64_t>(list.capacity() * sizeof(list[0]));
  };
  return size(items_) + size(combines_) + size(parts_) + size(tokens_) + size(combine_of_) +
         size(shared_tokens_);
}

}  // namespace treadle

#include "attention_plan.hpp"

#include <algorithm>

namespace treadle {
namespace {

// Items per thread that a step should have at least, so that threads end together.
constexpr int64_t kItemsPerThread = 4;
// Fewer pieces are not worth an item of their own.
constexpr int64_t kMinPieces = 4;

int32_t piece_of(int64_t position) { return static_cast<int32_t>(position / kPiece); }

// Reading a piece costs about as much as a few queries' work on it.
int64_t piece_cost(const AttentionItem& tile) { return tile.count + 2; }

}  // namespace

// Room to split one tile over all it may see; that is also the most a step gains from.
AttentionPlan::AttentionPlan(const AttentionShape& shape)
    : shape_(shape),
      partial_records_(shape.threads == 1 ? 0
                                          : shape.max_pieces() * shape.heads *
                                                tile_positions(shape.group())) {
  // No run allocates: a split item takes at least the records of kMinPieces for one token, but for
  // the last item of each tile.
  const int64_t splits = partial_records_ / (kMinPieces * shape.heads);
  items_.reserve(static_cast<size_t>(shape.max_tokens + splits));
  combines_.reserve(static_cast<size_t>(shape.max_tokens));
}

void AttentionPlan::make(const int32_t* positions, const int32_t* row_starts, int64_t rows) {
  items_.clear();
  combines_.clear();
  used_records_ = 0;
  const int32_t most_tokens = static_cast<int32_t>(tile_positions(shape_.group()));
  const auto each_tile = [&](auto visit) {
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t token = row_starts[row]; token < row_starts[row + 1]; token += most_tokens) {
        const int32_t count = std::min(most_tokens, row_starts[row + 1] - token);
        const int32_t first = first_piece(positions[token]);
        visit(AttentionItem{row, token, count, first,
                            piece_of(positions[token + count - 1]) + 1 - first, -1});
      }
    }
  };
  int64_t total = 0;
  each_tile([&](const AttentionItem& tile) { total += piece_cost(tile) * tile.pieces; });
  const int64_t share = total * shape_.kv_heads / (kItemsPerThread * shape_.threads);
  each_tile([&](const AttentionItem& tile) {
    add_tile(positions, tile, std::max(share / piece_cost(tile), kMinPieces));
  });
}

int32_t AttentionPlan::first_piece(int32_t position) const {
  return piece_of(first_seen(position, shape_.window));
}

// A tile of more than `most` pieces is split, where the partials have room.
void AttentionPlan::add_tile(const int32_t* positions, const AttentionItem& tile, int64_t most) {
  const int64_t stride = tile.count * shape_.heads;
  const int64_t records = tile.pieces * stride;
  if (tile.pieces <= most || used_records_ + records > partial_records_) {
    items_.push_back(tile);
    return;
  }
  for (int64_t first = 0; first < tile.pieces; first += most) {
    AttentionItem part = tile;
    part.first_piece = static_cast<int32_t>(tile.first_piece + first);
    part.pieces = static_cast<int32_t>(std::min(most, tile.pieces - first));
    part.partial = used_records_ + first * stride;
    items_.push_back(part);
  }
  for (int32_t i = 0; i < tile.count; ++i) {
    const int32_t position = positions[tile.token + i];
    const int32_t first = first_piece(position);
    combines_.push_back({tile.token + i, piece_of(position) + 1 - first,
                         used_records_ + (first - tile.first_piece) * stride + i * shape_.heads,
                         stride});
  }
  used_records_ += records;
}

}  // namespace treadle

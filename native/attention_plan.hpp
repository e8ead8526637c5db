// How the attention of one step is cut into items. Made once per step: all layers share it.
#pragma once

#include <vector>

#include "types.hpp"

namespace treadle {

// What a plan depends on; `group` counts query heads per KV head.
struct AttentionShape {
  int64_t heads;
  int64_t kv_heads;
  int64_t padded_dim;
  int64_t max_tokens;
  int64_t max_context;
  int64_t window;
  int threads;

  int64_t group() const { return heads / kv_heads; }
  // Pieces that a tile may see some of.
  int64_t max_pieces() const {
    const int64_t seen = window + tile_positions(group());
    return seen < max_context ? seen / kPiece + 2 : ceil_div(max_context, kPiece);
  }
  bool operator==(const AttentionShape&) const = default;
};

// Items are cut for speed alone: no cut changes a result.
class AttentionPlan {
 public:
  explicit AttentionPlan(const AttentionShape& shape);

  const AttentionShape& shape() const { return shape_; }
  const std::vector<AttentionItem>& items() const { return items_; }
  const std::vector<CombineItem>& combines() const { return combines_; }
  // Records that the pieces of split items may need.
  int64_t partial_records() const { return partial_records_; }

  void make(const int32_t* positions, const int32_t* row_starts, int64_t rows);

 private:
  int32_t first_piece(int32_t position) const;
  void add_tile(const int32_t* positions, const AttentionItem& tile, int64_t most);

  AttentionShape shape_;
  int64_t partial_records_;
  int64_t used_records_ = 0;
  std::vector<AttentionItem> items_;
  std::vector<CombineItem> combines_;
};

}  // namespace treadle

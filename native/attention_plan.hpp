// How the attention of one step is cut into items. Made once per step: all layers of a KV group
// with the same shape share it.
#pragma once

#include <vector>

#include "shared_pieces.hpp"
#include "types.hpp"

namespace treadle {

// What a plan depends on; `group` counts query heads per KV head.
struct AttentionShape {
  size_t kv_group;
  int64_t heads;
  int64_t kv_heads;
  int64_t padded_dim;
  int64_t max_tokens;
  int64_t max_rows;
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
  // The tokens of items, which name them by their place here.
  const std::vector<int32_t>& tokens() const { return tokens_; }
  // Tokens of the step, which come first among them.
  int64_t num_tokens() const { return num_tokens_; }
  // Which of the combines is a token's, where its items leave records.
  int32_t combine_of(int32_t token) const { return combine_of_[static_cast<size_t>(token)]; }
  // Items that leave records of a combine's token.
  int32_t parts_of(int32_t combine) const { return parts_[static_cast<size_t>(combine)]; }
  // Records that items may need.
  int64_t partial_records() const { return partial_records_; }
  // What its lists hold.
  int64_t bytes() const;

  void make(const StepRows& rows);

 private:
  // Pieces of some tokens: all they see, those that their rows share, or the rest.
  enum class Part { kAll, kShared, kRest };

  // Some tokens and the pieces that they go through together.
  struct Tile {
    int32_t row;
    int32_t first;
    int32_t count;
    int32_t first_piece;
    int32_t pieces;
    Part part;
  };

  template <class Visit>
  void each_tile(const StepRows& rows, Visit visit) const;
  void list_tokens(const StepRows& rows);
  int32_t first_piece(int32_t position) const;
  void add_tile(const StepRows& rows, const Tile& tile, int64_t most);
  int64_t records_of(const Tile& tile, int64_t size) const;
  void add_records(const Tile& tile, int64_t size, int32_t items, const int32_t* positions);
  int32_t combine_for(int32_t token);

  AttentionShape shape_;
  int64_t partial_records_;
  int64_t used_records_ = 0;
  int64_t num_tokens_ = 0;
  SharedPieces shared_;
  std::vector<Tile> shared_tokens_;
  std::vector<AttentionItem> items_;
  std::vector<CombineItem> combines_;
  std::vector<int32_t> parts_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> combine_of_;
};

}  // namespace treadle

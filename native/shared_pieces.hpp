// Which rows of a step begin with the same blocks, so that attention may read those once for all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace treadle {

// The rows of a step, and the block tables of one KV group.
struct StepRows {
  int64_t rows;
  const int32_t* positions;
  const int32_t* row_starts;
  const int32_t* table_rows;
  const int32_t* table;
  int64_t table_stride;
  int64_t block_size;

  int32_t tokens(int32_t row) const { return row_starts[row + 1] - row_starts[row]; }
  int32_t first_position(int32_t row) const { return positions[row_starts[row]]; }
  int32_t last_position(int32_t row) const { return positions[row_starts[row + 1] - 1]; }
  const int32_t* blocks(int32_t row) const { return table + table_rows[row] * table_stride; }
};

// Members [first, last) of SharedPieces::members() have the same blocks for so many pieces.
struct SharingRows {
  int32_t first;
  int32_t last;
  int32_t pieces;
};

// A row is in one group at most, and sees the pieces of its group whole.
class SharedPieces {
 public:
  explicit SharedPieces(int64_t max_rows);

  // Of rows with fewer than `most_tokens` tokens; longer ones have work enough for each read.
  void find(const StepRows& rows, int64_t window, int64_t most_tokens);
  void clear();

  const std::vector<SharingRows>& groups() const { return groups_; }
  const std::vector<int32_t>& members() const { return members_; }
  // Leading pieces that the row shares with its group, or 0.
  int32_t of(int32_t row) const { return of_[static_cast<std::size_t>(row)]; }

 private:
  struct Candidate {
    int32_t block;  // the last of the fewest pieces worth sharing
    int32_t row;
    int32_t whole;   // pieces that all its tokens see whole
    int32_t common;  // of them, those shared with the row that leads
  };

  void take_group(const StepRows& rows, std::size_t first, std::size_t last);

  std::vector<Candidate> candidates_;
  std::vector<SharingRows> groups_;
  std::vector<int32_t> members_;
  std::vector<int32_t> of_;
};

}  // namespace treadle

// The plain structures that the program, the packing code and every kernel variant share.
//
// This header is compiled once per instruction set, so nothing in it may become a symbol that the
// linker could take from the wrong variant: structures, constants and static functions only.
#pragma once

#include "formats.hpp"

namespace treadle {

// Rows of quantised activations that are stored together.
static constexpr int64_t kRowTile = 16;
// Tokens per attention piece, cut at absolute positions: part of the arithmetic.
static constexpr int64_t kPiece = 64;
// Values per partial sum over the vocabulary, likewise part of the arithmetic.
static constexpr int64_t kVocabularyPiece = 1024;

enum class KVType : int32_t { kF32, kF16, kBF16 };
static constexpr int kKVTypes = 3;

enum class Activation : int32_t { kSilu, kGelu, kGeluTanh };

// Activations [rows, width]. The float form is row-major. The quantised form holds, per tile of
// kRowTile rows and per block of kQuantBlock columns, one QuantRecord.
struct Activations {
  float* values;
  int64_t stride;
  uint8_t* records;
  int64_t width;
  bool keep_values;   // the float form is read by somebody
  bool keep_records;  // the quantised form is read by somebody
};

struct QuantRecord {
  int8_t values[kRowTile][kQuantBlock];
  float scale[kRowTile];
  // -8 times the sum of the row's values: where a dot product with nibbles that are stored with an
  // offset of 8 starts, so that the offset costs nothing.
  int32_t start[kRowTile];
  float scaled_sum[kRowTile];  // scale * sum, what a weight's minimum is multiplied with
  // The same of the block's halves, for weights in groups of 16; starts are -32 times the sum.
  int32_t half_start[2][kRowTile];
  float half_scaled_sum[2][kRowTile];
};

// One part of a matrix: n columns of one type, in panels of kLanes columns. `column` is where the
// part begins in the output. formats.hpp says what a panel is.
struct Part {
  WeightType type;
  const uint8_t* data;
  int64_t n;
  int64_t k;
  int64_t column;
  int64_t panels;
  int64_t panel_bytes;
};

struct LinearArgs {
  Part part;
  Activations x;
  float* out;
  int64_t out_stride;
  const float* bias;  // of the whole matrix, or null
  bool accumulate;
  bool stream;  // weights are read once, so fetch them ahead
};

// What a row kernel writes: some rows, and of them some columns. Rows begin with a row tile and
// columns with a block, or one item's records would share lines with another's.
struct Region {
  int64_t first_row;
  int64_t last_row;
  int64_t first_column;
  int64_t last_column;
};

struct NormArgs {
  Activations x;
  Activations out;
  const float* weight;
  const float* bias;  // of a layer norm, or null
  float eps;
  bool accumulate;  // onto the float form of out, which then is its only one
};

// x is gate and up, side by side, where the activation is gated.
struct ActivationArgs {
  Activations x;
  Activations out;
  Activation activation;
};

struct CopyArgs {
  Activations x;
  Activations out;
};

struct SoftcapArgs {
  Activations x;
  float cap;
};

struct QuantiseArgs {
  Activations x;  // from values to records
};

// One layer of a KV pool. Per block and KV head: K, then V. Where the block size is a multiple of
// kLanes, K is stored in groups of 16 tokens as [group][head_dim][16], so that a vector holds one
// dimension of 16 tokens; else as rows like V. V is [token][padded_dim].
//
// Kernels that multiply pairs of bf16 want both numbers of a pair together. Where `paired`, K of a
// group is [head_dim / 2][16][2], and V of grouped blocks [token / 2][padded_dim][2].
struct KVLayer {
  uint8_t* data;
  KVType type;
  bool grouped;
  bool paired;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t padded_dim;
  int64_t block_size;
  int64_t block_bytes;
  int64_t head_bytes;
  int64_t v_offset;
};

// RMS norms of q and k; a span is how many values are normed together, a head or all of them.
struct HeadNorms {
  const float* q;  // or null: no norms
  const float* k;
  int64_t q_span;
  int64_t k_span;
  float eps;
};

struct RopeArgs {
  float* qkv;
  int64_t stride;
  int64_t heads;
  const float* cos;
  const float* sin;
  int64_t pairs;
  bool interleaved;
  const int32_t* positions;
  const int32_t* slots;
  HeadNorms norms;
  KVLayer kv;
};

// Longer than any context.
static constexpr int64_t kNoWindow = int64_t{1} << 40;

struct Masking {
  float scale;
  int64_t window;  // or kNoWindow
  float softcap;   // or 0
};

// Where the token at `position` begins to see.
static constexpr int64_t first_seen(int64_t position, int64_t window) {
  return position < window ? 0 : position - window + 1;
}

struct AttentionArgs {
  const float* qkv;
  int64_t stride;
  float* out;
  int64_t out_stride;
  int64_t heads;
  Masking masking;
  KVLayer kv;
  const int32_t* positions;
  const int32_t* table_rows;
  const int32_t* table;
  int64_t table_stride;
  // The rest is the plan's of the step.
  const int32_t* tokens;
  float* partials;
};

// Where an item's results go: to the output, if its pieces are all there are, or to the partials,
// as the one record that the pieces so far come to, or as a record per piece.
enum class Result : int32_t { kOutput, kFolded, kPieces };

// Some tokens against some pieces of their context. The tokens are [first, first + count) of the
// plan's list, ascending in position where they see only part of a piece; `row` is one whose block
// table all of them share as far as these pieces go. Records are [piece][token][head], from index
// `partial` on, of partial_floats() each.
struct AttentionItem {
  int32_t row;
  int32_t first;
  int32_t count;
  int32_t first_piece;
  int32_t pieces;
  Result result;
  int64_t partial;
};

// KV heads [first, last) of an item.
struct HeadRange {
  int64_t first;
  int64_t last;
};

// Records of one token, `stride` apart.
struct Records {
  int64_t partial;
  int64_t stride;
  int32_t count;
};

// Adds up the records of one token, of the pieces it shares with others and then of those it does
// not, and writes its output.
struct CombineItem {
  int32_t token;
  Records runs[2];
};

// maximum, sum, then the weighted values
static constexpr int64_t partial_floats(int64_t padded_dim) { return padded_dim + 16; }

// Query vectors that share one pass over a piece; more positions per tile reuse K and V better,
// more scratch makes them fall out of the first cache.
static constexpr int64_t tile_positions(int64_t group) {
  return group >= 48 ? 1 : (48 / group < 16 ? 48 / group : 16);
}

// Rounded queries take half a float per value, scores one per token of a piece: never both.
static constexpr int64_t attention_scratch_floats(int64_t group, int64_t padded_dim) {
  const int64_t queries = round_up(tile_positions(group) * group, kLanes);
  const int64_t each = (padded_dim / 2 > kPiece ? padded_dim / 2 : kPiece) + padded_dim + 6;
  return queries * each + 2 * kPiece * padded_dim + 4 * kLanes;
}

// The choice of experts per row of router logits: top_k per row, ascending by expert.
struct RouteArgs {
  const float* logits;
  int64_t stride;
  int64_t experts;
  int64_t top_k;
  bool renormalise;
  int32_t* chosen;
  float* weights;
};

// out[row] += the row's results times their weights, of those that lie at places [first, last).
struct MixArgs {
  const float* results;  // that of place `first` comes first
  int64_t results_stride;
  const int32_t* places;  // [row][top_k]
  const float* weights;   // [row][top_k]
  int64_t top_k;
  int64_t first;
  int64_t last;
  float* out;
  int64_t out_stride;
  int64_t width;
};

// The kernels of one instruction set. Ranges are [first, last).
struct Kernels {
  const char* name;
  bool pairs_bf16;  // attention multiplies pairs of bf16 where K and V are of that type
  void (*linear[kWeightTypes])(const LinearArgs&, int64_t first_panel, int64_t last_panel,
                               int64_t first_row, int64_t last_row);
  void (*rms_norm)(const NormArgs&, const Region&);
  void (*layer_norm)(const NormArgs&, const Region&);
  void (*gated)(const ActivationArgs&, const Region&);
  void (*activate)(const ActivationArgs&, const Region&);
  void (*copy)(const CopyArgs&, const Region&);
  void (*softcap)(const SoftcapArgs&, const Region&);
  void (*quantise)(const QuantiseArgs&, const Region&);
  void (*rope_store)(const RopeArgs&, int64_t first_token, int64_t last_token);
  void (*attend)(const AttentionArgs&, const AttentionItem&, const HeadRange&, float* scratch);
  void (*combine)(const AttentionArgs&, const CombineItem&, int64_t head);
  // `scratch` has room for a row of logits, in whole vectors.
  void (*route)(const RouteArgs&, int64_t first_row, int64_t last_row, float* scratch);
  void (*mix)(const MixArgs&, int64_t first_row, int64_t last_row);
  // Over one row of logits. NaN is never the largest.
  float (*largest)(const float* x, int64_t n);
  int64_t (*first_equal)(const float* x, int64_t n, float value);
  // weights[i] = exp((x[i] - max) / temperature), NaN giving 0; weights may be null. Leaves the
  // sum of each vocabulary piece.
  void (*exponentials)(const float* x, int64_t n, float max, float temperature, float* weights,
                       float* piece_sums);
  // Sums of each vocabulary piece over the values of at least `floor`.
  void (*sums_at_least)(const float* weights, int64_t n, float floor, float* piece_sums);
  // Writes the ids of the values of at least `floor`, ascending, and returns how many.
  int64_t (*collect_at_least)(const float* weights, int64_t n, float floor, int32_t* ids);
  // The first id from `first` on whose value is above `floor`, or n.
  int64_t (*next_above)(const float* x, int64_t first, int64_t n, float floor);
  // Multiply-adds of bytes, or of floats, that wait for nothing; how many operations they were.
  // `sink` takes kLanes floats, so that the work is not for nothing.
  int64_t (*byte_peak)(int64_t rounds, float* sink);
  int64_t (*float_peak)(int64_t rounds, float* sink);
};

}  // namespace treadle

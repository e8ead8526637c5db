// Causal attention over paged K and V, in pieces of 64 tokens at absolute positions.
//
// Within a piece each query takes the same steps in the same order, and pieces are combined in
// order of position, from the first that the query sees. Which queries share a pass, where blocks
// lie and whether pieces are spread over threads changes none of it. The steps themselves are those
// of attention_floats.hpp or, where K and V lie in pairs, of attention_pairs.hpp.
//
// What a query may not see weighs nothing: its score may be made from whatever lies there, lanes
// being independent, but is dropped before the maximum, and its V is not read, or masked.
#include "variant.hpp"

namespace treadle::TREADLE_VARIANT {
namespace {

constexpr bool kManyRegisters = kAccumulators >= 24;
// Queries per register tile, times groups of 16 tokens (scores) or of 16 dimensions (values).
constexpr int kTileQueries = kManyRegisters ? 6 : kAccumulators / 2;
constexpr int kTileVectors = kManyRegisters ? 4 : 2;

#include "attention_item.hpp"

#include "attention_floats.hpp"
#if defined(TREADLE_PAIRS_BF16)
#include "attention_pairs.hpp"
#endif

template <class T>
void attend_floats(const AttentionArgs& args, const AttentionItem& item, const HeadRange& heads,
                   float* scratch) {
  each_piece(args, item, heads, scratch, attend_piece_from_cache<T>);
}

template <F (*power)(F)>
void combine_records(const AttentionArgs& args, const CombineItem& item, int64_t head) {
  const int64_t padded = args.kv.padded_dim;
  const int64_t dims = args.kv.head_dim;
  float* out = args.out + item.token * args.out_stride + head * dims;
  // The first record takes the place of the pieces so far: nobody reads it again.
  float* values = nullptr;
  F max = set1(kLowest);
  F sum = zero();
  for (const Records& run : item.runs) {
    for (int64_t r = 0; r < run.count; ++r) {
      float* record = args.partials + (run.partial + r * run.stride + head) * partial_floats(padded);
      const Merge m = merge<power>(max, sum, set1(record[0]), set1(record[1]));
      max = m.max;
      sum = m.sum;
      float* piece = record + kLanes;
      if (values == nullptr) values = piece;
      for (int64_t d = 0; d < padded; d += kLanes) {
        const F so_far = values == piece ? zero() : load(values + d);
        store(values + d, merge_values(so_far, m.old_factor, load(piece + d), m.piece_factor));
      }
    }
  }
  for (int64_t d = 0; d < dims; d += kLanes) {
    store(out + d, div(load(values + d), sum), dims - d);
  }
}

}  // namespace

void attend(const AttentionArgs& args, const AttentionItem& item, const HeadRange& heads,
            float* scratch) {
#if defined(TREADLE_PAIRS_BF16)
  if (args.kv.paired) return attend_pairs(args, item, heads, scratch);
#endif
  switch (args.kv.type) {
    case KVType::kF32:
      return attend_floats<float>(args, item, heads, scratch);
    case KVType::kF16:
      return attend_floats<Half>(args, item, heads, scratch);
    case KVType::kBF16:
      return attend_floats<Brain>(args, item, heads, scratch);
  }
}

void combine(const AttentionArgs& args, const CombineItem& item, int64_t head) {
#if defined(TREADLE_PAIRS_BF16)
  if (args.kv.paired) return combine_records<weight_of>(args, item, head);
#endif
  combine_records<exponential>(args, item, head);
}

}  // namespace treadle::TREADLE_VARIANT

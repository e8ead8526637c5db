// Causal attention over paged K and V, in pieces of 64 tokens at absolute positions.
//
// Within a piece, per query: a score is the dot product in order of the dimensions; then the
// largest score, exponentials, their sum over 16 lanes; then the weighted sum of V in token order.
// Pieces are combined in order of position, from the first that the query sees. Which queries share
// a pass, where blocks lie and whether pieces are spread over threads changes none of it.
//
// What a query may not see weighs nothing: its score may be made from whatever lies there, lanes
// being independent, but is dropped before the maximum, and its V is not read.
#include "variant.hpp"

namespace treadle::TREADLE_VARIANT {
namespace {

constexpr bool kManyRegisters = kAccumulators >= 24;
// Queries per register tile, times groups of 16 tokens (scores) or of 16 dimensions (values).
constexpr int kTileQueries = kManyRegisters ? 6 : kAccumulators / 2;
constexpr int kTileVectors = kManyRegisters ? 4 : 2;

#include "attention_item.hpp"

// Kept to itself, as its loop needs all the registers.
template <class K, int R, int G>
[[gnu::noinline]] void score_tile(const Queries& q, const K* const* keys, int64_t first, int64_t first_group) {
  const int64_t dims = q.args.kv.head_dim;
  const float* x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x[r] = q.query(first + r);
  F sums[R][G];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) sums[r][g] = zero();
  }
  for (int64_t d = 0; d < dims; ++d) {
    q.ahead->advance();
    q.ahead->advance();
    F key[G];
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) key[g] = load(keys[first_group + g] + d * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F value = set1(x[r][d]);
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) sums[r][g] = fma(value, key[g], sums[r][g]);
    }
  }
  const F scale = set1(q.args.masking.scale);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      store(q.scores + (first + r) * kPiece + (first_group + g) * kLanes, mul(sums[r][g], scale));
    }
  }
}

template <class K, int R>
void score_queries(const Queries& q, const K* const* keys, int64_t first, Seen seen) {
  const int64_t groups = ceil_div(seen.to, kLanes);
  int64_t g = seen.from / kLanes;
  for (; g + kTileVectors <= groups; g += kTileVectors) {
    score_tile<K, R, kTileVectors>(q, keys, first, g);
  }
  if constexpr (kTileVectors > 2) {
    if (g + 2 <= groups) {
      score_tile<K, R, 2>(q, keys, first, g);
      g += 2;
    }
  }
  if (g < groups) score_tile<K, R, 1>(q, keys, first, g);
}

// Calls body<R>(i) for tiles of R queries over [first, last), R as large as the registers allow.
template <int R, class Body>
void in_tiles(int64_t first, int64_t last, Body body) {
  for (; first + R <= last; first += R) body.template operator()<R>(first);
  if constexpr (R > 1) in_tiles<R - 1>(first, last, body);
}

void cap_scores(const Queries& q, int64_t first, int64_t last, Seen seen) {
  const F cap = set1(q.args.masking.softcap);
  for (int64_t i = first; i < last; ++i) {
    float* row = q.scores + i * kPiece;
    for (int64_t t = seen.from / kLanes * kLanes; t < seen.to; t += kLanes) {
      store(row + t, capped(load(row + t), cap));
    }
  }
}

// Scores of some of a piece's group g, -inf where the query does not see.
F masked_scores(const float* row, int g, Seen seen) {
  const F hidden = set1(-__builtin_inff());
  const F from_start = select(first_lanes(seen.to - g * kLanes), load(row + g * kLanes), hidden);
  return seen.from > g * kLanes ? select(first_lanes(seen.from - g * kLanes), hidden, from_start)
                                : from_start;
}

// Scores become weights.
void soften(const Queries& q, int64_t i, Seen seen) {
  const bool whole = seen.from == 0 && seen.to == kPiece;
  const int first = static_cast<int>(seen.from / kLanes);
  const int last = static_cast<int>(ceil_div(seen.to, kLanes));
  float* row = q.scores + i * kPiece;
  F score[kGroups];
  F top = set1(-__builtin_inff());
  for (int g = 0; g < kGroups; ++g) {
    if (g < first || g >= last) continue;
    score[g] = whole ? load(row + g * kLanes) : masked_scores(row, g, seen);
    top = max(top, score[g]);
  }
  const float max = max_lanes(top);
  for (int g = 0; g < kGroups; ++g) {
    score[g] = g < first || g >= last ? zero() : exponential(sub(score[g], set1(max)));
    store(row + g * kLanes, score[g]);
  }
  q.piece_max[i] = max;
  q.piece_sum[i] = sum_lanes(add(add(score[0], score[1]), add(score[2], score[3])));
}

// What the pieces so far and a further one are worth after both are brought to the larger maximum.
struct Merge {
  F max;
  F old_factor;
  F piece_factor;
  F sum;
};

Merge merge(F max_so_far, F sum_so_far, F piece_max, F piece_sum) {
  Merge m;
  m.max = max(max_so_far, piece_max);
  m.old_factor = exponential(sub(max_so_far, m.max));
  m.piece_factor = exponential(sub(piece_max, m.max));
  m.sum = fma(sum_so_far, m.old_factor, mul(piece_sum, m.piece_factor));
  return m;
}

F merge_values(F so_far, F old_factor, F piece, F piece_factor) {
  return fma(so_far, old_factor, mul(piece, piece_factor));
}

void merge_sums(const Queries& q, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; i += kLanes) {
    const int64_t n = last - i;
    const Merge m = merge(load(q.max + i, n), load(q.sum + i, n), load(q.piece_max + i, n),
                          load(q.piece_sum + i, n));
    store(q.max + i, m.max, n);
    store(q.sum + i, m.sum, n);
    store(q.old_factor + i, m.old_factor, n);
    store(q.piece_factor + i, m.piece_factor, n);
  }
}

// Where the weighted values of a piece go.
enum class Into { kFirst, kMerged, kPartial };
struct Target {
  Into into;
  int64_t piece;
};

template <class T, int R, int V>
[[gnu::noinline]] void value_tile(const Queries& q, const T* const* values, int64_t first, Seen seen, int64_t dim,
                Target target) {
  const int64_t padded = q.args.kv.padded_dim;
  F sums[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sums[r][v] = zero();
  }
  const float* weights = q.scores + first * kPiece;
  for (int64_t t = seen.from; t < seen.to; ++t) {
    q.ahead->advance();
    q.ahead->advance();
    const T* row = values[t] + dim;
    F value[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) value[v] = load(row + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F weight = set1(weights[r * kPiece + t]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[r][v] = fma(weight, value[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const int64_t i = first + r;
    float* to = target.into == Into::kPartial ? q.partial(i, target.piece) + kLanes
                                              : q.values + i * padded;
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      float* at = to + dim + v * kLanes;
      F sum = sums[r][v];
      if (target.into == Into::kMerged) {
        sum = merge_values(load(at), set1(q.old_factor[i]), sum, set1(q.piece_factor[i]));
      }
      store(at, sum);
    }
  }
}

// Queries [first, last) see the same of the piece.
template <class T>
void weigh_alike(const Queries& q, const T* const* values, int64_t first, int64_t last, Seen seen,
                 Target target) {
  in_tiles<kTileQueries>(first, last, [&]<int R>(int64_t i) {
    int64_t dim = 0;
    for (; dim + kTileVectors * kLanes <= q.args.kv.padded_dim; dim += kTileVectors * kLanes) {
      value_tile<T, R, kTileVectors>(q, values, i, seen, dim, target);
    }
    for (; dim < q.args.kv.padded_dim; dim += kLanes) {
      value_tile<T, R, 1>(q, values, i, seen, dim, target);
    }
  });
}

template <class T>
void weigh_values(const Queries& q, const T* const* values, Tokens tokens, Target target) {
  const int64_t base = target.piece * kPiece;
  const Seen all = q.seen_by_all(tokens, base);
  if (all.from == 0 && all.to == kPiece) {
    weigh_alike(q, values, tokens.first * q.group, tokens.last * q.group, all, target);
    return;
  }
  for (int64_t t = tokens.first; t < tokens.last; ++t) {
    weigh_alike(q, values, t * q.group, (t + 1) * q.group, q.seen(t, base), target);
  }
}

// Each of the tokens sees some of the piece.
template <class K, class V>
void attend_piece(const Queries& q, const Source<K, V>& source, int64_t piece, Tokens tokens) {
  const int64_t base = piece * kPiece;
  const int64_t first = tokens.first * q.group;
  const int64_t last = tokens.last * q.group;
  const Seen any = q.seen_by_any(tokens, base);
  in_tiles<kTileQueries>(first, last, [&]<int R>(int64_t i) {
    score_queries<K, R>(q, source.keys, i, any);
  });
  if (q.args.masking.softcap > 0) cap_scores(q, first, last, any);
  for (int64_t t = tokens.first; t < tokens.last; ++t) {
    const Seen seen = q.seen(t, base);
    for (int64_t i = t * q.group; i < (t + 1) * q.group; ++i) soften(q, i, seen);
  }

  // Later tokens may begin to see where earlier ones go on.
  int64_t begun = tokens.last;
  Into into = Into::kMerged;
  if (q.item.partial >= 0) {
    into = Into::kPartial;
    for (int64_t i = first; i < last; ++i) {
      float* record = q.partial(i, piece);
      record[0] = q.piece_max[i];
      record[1] = q.piece_sum[i];
    }
  } else {
    while (begun > tokens.first && q.starts_at(piece, begun - 1)) --begun;
    merge_sums(q, first, begun * q.group);
    for (int64_t i = begun * q.group; i < last; ++i) {
      q.max[i] = q.piece_max[i];
      q.sum[i] = q.piece_sum[i];
    }
  }
  if (begun > tokens.first) {
    weigh_values(q, source.values, {tokens.first, begun}, {into, piece});
  }
  if (begun < tokens.last) {
    weigh_values(q, source.values, {begun, tokens.last}, {Into::kFirst, piece});
  }
}

const uint8_t* head_of(const AttentionArgs& a, const AttentionItem& item, int64_t kv_head,
                       int64_t position) {
  const int32_t* table = a.table + a.table_rows[item.row] * a.table_stride;
  return a.kv.data + table[position / a.kv.block_size] * a.kv.block_bytes +
         kv_head * a.kv.head_bytes;
}

// Reads grouped blocks where they are. Only groups with a visible token have a block.
template <class T>
Source<T, T> find_groups(const Queries& q, int64_t base, Seen seen) {
  const KVLayer& kv = q.args.kv;
  Source<T, T> source{};
  for (int64_t t = seen.from / kLanes * kLanes; t < seen.to; t += kLanes) {
    const uint8_t* head = head_of(q.args, q.item, q.kv_head, base + t);
    const int64_t offset = (base + t) % kv.block_size;
    source.keys[t / kLanes] = reinterpret_cast<const T*>(head) + offset * kv.head_dim;
    const T* values = reinterpret_cast<const T*>(head + kv.v_offset) + offset * kv.padded_dim;
    for (int64_t i = 0; i < kLanes; ++i) source.values[t + i] = values + i * kv.padded_dim;
  }
  return source;
}

float* scratch_keys(const Queries& q, int64_t group) {
  return q.keys_scratch + group * kLanes * q.args.kv.head_dim;
}

// Widens a piece once for many queries.
template <class T>
Source<float, float> widen(const Queries& q, const Source<T, T>& from, Seen seen) {
  const KVLayer& kv = q.args.kv;
  Source<float, float> source{};
  for (int64_t g = seen.from / kLanes; g * kLanes < seen.to; ++g) {
    float* keys = scratch_keys(q, g);
    for (int64_t i = 0; i < kv.head_dim; ++i) store(keys + i * 16, load(from.keys[g] + i * 16));
    source.keys[g] = keys;
  }
  for (int64_t t = seen.from; t < seen.to; ++t) {
    float* values = q.values_scratch + t * kv.padded_dim;
    for (int64_t d = 0; d < kv.padded_dim; d += kLanes) store(values + d, load(from.values[t] + d));
    source.values[t] = values;
  }
  return source;
}

// 16 rows of K as columns.
template <class T>
void turn_rows(const T* const* rows, int64_t dims, float* columns) {
  for (int64_t d = 0; d < dims; d += kLanes) {
    F block[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) block[i] = load(rows[i] + d);
    transpose(block);
    const int64_t left = dims - d;
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      if (i < left) store(columns + (d + i) * kLanes, block[i]);
    }
  }
}

// Cache lines fetched ahead per group that is turned, which takes about as long.
constexpr int kLinesPerTurn = 32;

// Collects a piece from blocks whose size is no multiple of 16, token by token.
template <class T>
Source<float, T> gather(const Queries& q, int64_t base, Seen seen) {
  const KVLayer& kv = q.args.kv;
  Source<float, T> source{};
  const T* keys[kPiece];
  for (int64_t t = seen.from; t < seen.to; ++t) {
    const uint8_t* head = head_of(q.args, q.item, q.kv_head, base + t);
    const int64_t offset = (base + t) % kv.block_size * kv.padded_dim;
    keys[t] = reinterpret_cast<const T*>(head) + offset;
    source.values[t] = reinterpret_cast<const T*>(head + kv.v_offset) + offset;
  }
  // Nobody looks at the scores of the tokens that fill up the outer groups.
  for (int64_t t = seen.from; t % kLanes != 0; --t) keys[t - 1] = keys[seen.from];
  for (int64_t t = seen.to; t % kLanes != 0; ++t) keys[t] = keys[seen.to - 1];
  for (int64_t g = seen.from / kLanes; g * kLanes < seen.to; ++g) {
    for (int line = 0; line < kLinesPerTurn; ++line) q.ahead->advance();
    turn_rows(keys + g * kLanes, kv.head_dim, scratch_keys(q, g));
    source.keys[g] = scratch_keys(q, g);
  }
  return source;
}

void write_outputs(const Queries& q) {
  const int64_t dims = q.args.kv.head_dim;
  for (int64_t i = 0; i < q.count; ++i) {
    const float* values = q.values + i * q.args.kv.padded_dim;
    float* out = q.args.out + (q.item.token + i / q.group) * q.args.out_stride +
                 (q.kv_head * q.group + i % q.group) * dims;
    const F sum = set1(q.sum[i]);
    for (int64_t d = 0; d < dims; d += kLanes) {
      store(out + d, div(load(values + d), sum), dims - d);
    }
  }
}

// Widening pays from this many queries on; then, too, the work on a piece hides its loads.
constexpr int64_t kWidenFrom = 12;

void plan_ahead(const Queries& q, int64_t kv_head, int64_t piece, Ahead& ahead) {
  const KVLayer& kv = q.args.kv;
  const int64_t base = piece * kPiece;
  const Seen seen = q.seen_by_any({0, q.item.count}, base);
  const int64_t row_bytes = (kv.head_bytes - kv.v_offset) / kv.block_size;
  const int64_t run = kv.grouped ? kLanes : 1;
  for (int64_t t = seen.from / run * run; t < seen.to; t += run) {
    const uint8_t* head = head_of(q.args, q.item, kv_head, base + t);
    const int64_t offset = (base + t) % kv.block_size * row_bytes;
    ahead.add(head + offset);
    ahead.add(head + kv.v_offset + offset);
  }
  ahead.start(run * row_bytes);
}

template <class T>
void attend_piece_from_cache(Queries& q, int64_t piece) {
  const int64_t base = piece * kPiece;
  Tokens tokens{0, q.item.count};
  while (q.seen(tokens.first, base).to <= 0) ++tokens.first;
  while (q.seen(tokens.last - 1, base).from >= kPiece) --tokens.last;
  const Seen seen = q.seen_by_any(tokens, base);
  if (!q.args.kv.grouped) {
    attend_piece(q, gather<T>(q, base, seen), piece, tokens);
    return;
  }
  const Source<T, T> source = find_groups<T>(q, base, seen);
  if (sizeof(T) < sizeof(float) && q.count >= kWidenFrom) {
    attend_piece(q, widen(q, source, seen), piece, tokens);
  } else {
    attend_piece(q, source, piece, tokens);
  }
}

template <class T>
void attend_typed(const AttentionArgs& args, const AttentionItem& item, const HeadRange& heads,
                  float* scratch) {
  const int64_t last = item.first_piece + item.pieces;
  for (int64_t head = heads.first; head < heads.last; ++head) {
    Queries q = lay_out(args, item, head, scratch);
    for (int64_t p = item.first_piece; p < last; ++p) {
      Ahead ahead;
      q.ahead = &ahead;
      if (q.count < kWidenFrom) {
        if (p + 1 < last) {
          plan_ahead(q, head, p + 1, ahead);
        } else if (head + 1 < heads.last) {
          plan_ahead(q, head + 1, item.first_piece, ahead);
        }
      }
      attend_piece_from_cache<T>(q, p);
      ahead.finish();
    }
    if (item.partial < 0) write_outputs(q);
  }
}

}  // namespace

void attend(const AttentionArgs& args, const AttentionItem& item, const HeadRange& heads,
            float* scratch) {
  switch (args.kv.type) {
    case KVType::kF32:
      return attend_typed<float>(args, item, heads, scratch);
    case KVType::kF16:
      return attend_typed<Half>(args, item, heads, scratch);
    case KVType::kBF16:
      return attend_typed<Brain>(args, item, heads, scratch);
  }
}

void combine(const AttentionArgs& args, const CombineItem& item, int64_t head) {
  const int64_t floats = partial_floats(args.kv.padded_dim);
  float* first = args.partials + (item.partial + head) * floats;
  float* so_far = first + kLanes;
  F max = set1(first[0]);
  F sum = set1(first[1]);
  for (int64_t p = 1; p < item.pieces; ++p) {
    const float* piece = first + p * item.piece_stride * floats;
    const Merge m = merge(max, sum, set1(piece[0]), set1(piece[1]));
    max = m.max;
    sum = m.sum;
    for (int64_t d = 0; d < args.kv.padded_dim; d += kLanes) {
      store(so_far + d, merge_values(load(so_far + d), m.old_factor, load(piece + kLanes + d),
                                     m.piece_factor));
    }
  }
  float* out = args.out + item.token * args.out_stride + head * args.kv.head_dim;
  for (int64_t d = 0; d < args.kv.head_dim; d += kLanes) {
    store(out + d, div(load(so_far + d), sum), args.kv.head_dim - d);
  }
}

}  // namespace treadle::TREADLE_VARIANT

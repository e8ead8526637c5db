// The float arithmetic of attention: products in f32, K and V widened from whatever type they are
// stored in. Included inside the variant's namespace.
//
// A score is the dot product in order of the dimensions; then the largest score, exponentials,
// their sum over 16 lanes; then the weighted sum of V in token order.

// Where a piece lies: K per group of 16 tokens as [dimension][16], V per token.
template <class K, class V>
struct Source {
  const K* keys[kGroups];
  const V* values[kPiece];
};

// Kept to itself, as its loop needs all the registers.
template <class K, int R, int G>
[[gnu::noinline]] void score_tile(const Queries& q, const K* const* keys, int64_t first,
                                  int64_t first_group) {
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

// Where the weighted values of a piece go: to the pieces so far, or to its records.
struct Target {
  bool merged;
  int64_t piece;
};

template <class T, int R, int V>
[[gnu::noinline]] void value_tile(const Queries& q, const T* const* values, int64_t first,
                                  Seen seen, int64_t dim, Target target) {
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
    float* to = target.merged ? q.values + i * padded : q.record(i, target.piece) + kLanes;
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      float* at = to + dim + v * kLanes;
      F sum = sums[r][v];
      if (target.merged) {
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
  const bool merged = q.item.result != Result::kPieces;
  if (merged) {
    merge_sums<exponential>(q, first, last);
  } else {
    write_record_heads(q, piece, first, last);
  }
  weigh_values(q, source.values, tokens, {merged, piece});
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

template <class T>
void attend_piece_from_cache(const Queries& q, int64_t piece) {
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
  if (sizeof(T) < sizeof(float) && q.count >= kManyQueries) {
    attend_piece(q, widen(q, source, seen), piece, tokens);
  } else {
    attend_piece(q, source, piece, tokens);
  }
}


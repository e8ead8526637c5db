// The bf16 arithmetic of attention, for processors that multiply two pairs of bf16 and add both
// products to a float. Included inside the variant's namespace.
//
// Queries are rounded to bf16 once per item. A score is the sum over pairs of dimensions in order;
// then the largest score, powers of two, rounded to bf16; then the sum over pairs of tokens in
// order of these weights times V. The weights are added up as rounded, so that rounding shifts what
// they are divided by as well: of values that are alike nothing is lost.

#include <immintrin.h>

// Sixteen pairs.
struct Pairs {
  __m512i v;
};

inline Pairs load(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
inline Pairs set1(uint32_t pair) { return {_mm512_set1_epi32(static_cast<int32_t>(pair))}; }
inline void store(uint32_t* p, Pairs x) { _mm512_storeu_si512(p, x.v); }
inline F add_products(F sum, Pairs a, Pairs b) {
  return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(a.v),
                           reinterpret_cast<__m512bh>(b.v))};
}
// Rounded to nearest, ties to even, in the order (low, high).
inline Pairs round_pairs(F low, F high) {
  return {reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.v, low.v))};
}

// 2^x for x <= 0, within 3e-6: a thousandth of what rounding it to bf16 costs. Exactly 1 at 0, and 0
// at -inf. 2^x = 2^floor(x) p(x - floor(x)).
inline F weight_of(F x) {
  const F r = {_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF)};
  F p = set1(0x1.b7f732p-7f);
  p = fma(p, r, set1(0x1.abf868p-5f));
  p = fma(p, r, set1(0x1.ee2450p-3f));
  p = fma(p, r, set1(0x1.62d6c6p-1f));
  p = fma(p, r, set1(1.0f));
  return {_mm512_scalef_ps(p.v, x.v)};
}

// The reductions of four vectors, over and over.
template <F (*reduce)(F, F)>
inline F reduce_four(F a, F b, F c, F d) {
  const F ab = reduce({_mm512_unpacklo_ps(a.v, b.v)}, {_mm512_unpackhi_ps(a.v, b.v)});
  const F cd = reduce({_mm512_unpacklo_ps(c.v, d.v)}, {_mm512_unpackhi_ps(c.v, d.v)});
  const __m512d ab2 = _mm512_castps_pd(ab.v);
  const __m512d cd2 = _mm512_castps_pd(cd.v);
  F all = reduce({_mm512_castpd_ps(_mm512_unpacklo_pd(ab2, cd2))},
                 {_mm512_castpd_ps(_mm512_unpackhi_pd(ab2, cd2))});
  all = reduce(all, {_mm512_shuffle_f32x4(all.v, all.v, 0x4e)});
  return reduce(all, {_mm512_shuffle_f32x4(all.v, all.v, 0xb1)});
}

// Where a piece lies, per group of 16 tokens: K as [dimension / 2][16], V as [token / 2][padded_dim].
struct PairSource {
  const uint32_t* keys[kGroups];
  const uint32_t* values[kGroups];
};

// Pairs of tokens in a group.
constexpr int64_t kGroupPairs = kLanes / 2;

// R queries and a piece. A bit of `seen` is a token of the piece.
template <int R>
struct PairTile {
  // The arrays are written before they are read.
  PairTile(const Queries& queries, const PairSource& from, int64_t of_piece, int64_t first_query)
      : q(queries), source(from), first(first_query), piece(of_piece) {}

  const Queries& q;
  const PairSource& source;
  int64_t first;  // query
  int64_t piece;
  uint64_t seen[R];
  alignas(64) float scores[R][kPiece];
  alignas(64) uint32_t weights[R][kPiece / 2];
  alignas(64) float old_factor[kLanes];
  alignas(64) float piece_factor[kLanes];
};

// A rounded query is as long as half a padded one; the queries lie where scores would.
uint32_t* rounded(const Queries& q, int64_t i) {
  return reinterpret_cast<uint32_t*>(q.scores) + i * (q.args.kv.padded_dim / 2);
}

int32_t* query_positions(const Queries& q) { return reinterpret_cast<int32_t*>(q.piece_max); }

void round_queries(const Queries& q) {
  for (int64_t i = 0; i < q.count; ++i) {
    const float* query = q.query(i);
    query_positions(q)[i] = q.args.positions[q.token(i / q.group)];
    for (int64_t d = 0; d < q.args.kv.head_dim; d += kLanes) {
      const __m256bh half = _mm512_cvtneps_pbh(load(query + d, q.args.kv.head_dim - d).v);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(rounded(q, i) + d / 2),
                          reinterpret_cast<__m256i>(half));
    }
  }
}

// As many cache lines as there are to a piece for each of the steps over it.
template <bool kFetch>
inline void fetch_ahead(const Queries& q) {
  if constexpr (kFetch) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) q.ahead->advance();
  }
}

// Kept to itself, as its loop needs all the registers.
template <int R, int G, bool kFetch>
[[gnu::noinline]] void score_pairs(PairTile<R>& tile, int first_group) {
  const Queries& q = tile.q;
  const int64_t pairs = q.args.kv.head_dim / 2;
  const int64_t stride = q.args.kv.padded_dim / 2;
  const uint32_t* x = rounded(q, tile.first);
  const uint32_t* keys[G];
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) keys[g] = tile.source.keys[first_group + g];
  F sums[R][G];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) sums[r][g] = zero();
  }
  for (int64_t d = 0; d < pairs; ++d) {
    fetch_ahead<kFetch>(q);
    Pairs key[G];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) key[g] = load(keys[g] + d * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Pairs query = set1(x[r * stride + d]);
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) sums[r][g] = add_products(sums[r][g], query, key[g]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) store(tile.scores[r] + (first_group + g) * kLanes, sums[r][g]);
  }
}

template <int R, bool kFetch>
void score_seen(PairTile<R>& tile, Seen any) {
  const int first = static_cast<int>(any.from / kLanes);
  switch (ceil_div(any.to, kLanes) - first) {
    case 1:
      return score_pairs<R, 1, kFetch>(tile, first);
    case 2:
      return score_pairs<R, 2, kFetch>(tile, first);
    case 3:
      return score_pairs<R, 3, kFetch>(tile, first);
    default:
      return score_pairs<R, 4, kFetch>(tile, first);
  }
}

template <int R>
void cap_tile(PairTile<R>& tile) {
  const F scale = set1(tile.q.args.masking.scale);
  const F cap = set1(tile.q.args.masking.softcap);
  for (int r = 0; r < R; ++r) {
    for (int64_t t = 0; t < kPiece; t += kLanes) {
      store(tile.scores[r] + t, capped(mul(load(tile.scores[r] + t), scale), cap));
    }
  }
}

// Scores of queries [first, first + B) become weights. Returns their largest scores, and leaves
// their sums, over and over in a vector. Whatever a query does not see has the score -inf.
template <int B, int R>
inline F soften_some(PairTile<R>& tile, int first, F scale, F& sums) {
  const F hidden = set1(-__builtin_inff());
  F score[4][kGroups];
  F top[4];
#pragma GCC unroll 4
  for (int b = 0; b < B; ++b) {
    const uint64_t seen = tile.seen[first + b];
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      const F raw = load(tile.scores[first + b] + g * kLanes);
      const auto mask = static_cast<__mmask16>(seen >> (g * kLanes));
      score[b][g] = {_mm512_mask_mul_ps(hidden.v, mask, raw.v, scale.v)};
    }
    top[b] = max(max(score[b][0], score[b][1]), max(score[b][2], score[b][3]));
  }
#pragma GCC unroll 4
  for (int b = B; b < 4; ++b) top[b] = hidden;
  const F largest = max(set1(kLowest), reduce_four<max>(top[0], top[1], top[2], top[3]));
  const Pairs one = set1(0x3f803f80u);
  F total[4];
#pragma GCC unroll 4
  for (int b = 0; b < 4; ++b) {
    total[b] = zero();
    if (b >= B) continue;
    const F max = {b == 0   ? _mm512_permute_ps(largest.v, 0x00)
                   : b == 1 ? _mm512_permute_ps(largest.v, 0x55)
                   : b == 2 ? _mm512_permute_ps(largest.v, 0xaa)
                            : _mm512_permute_ps(largest.v, 0xff)};
#pragma GCC unroll 2
    for (int g = 0; g < kGroups; g += 2) {
      const Pairs weights = round_pairs(weight_of(sub(score[b][g], max)),
                                        weight_of(sub(score[b][g + 1], max)));
      store(tile.weights[first + b] + g * kGroupPairs, weights);
      total[b] = add_products(total[b], weights, one);
    }
  }
  sums = reduce_four<add>(total[0], total[1], total[2], total[3]);
  return largest;
}

// Lanes 0 to 3 of a, then those of b.
inline F join(F a, F b) { return {_mm512_mask_blend_ps(0x00f0, a.v, b.v)}; }

// Writes R lanes, and what was there to those beyond.
template <int R>
inline void store_first(float* p, F x) {
  store(p, select(first_lanes(R), x, load(p)));
}

template <int R>
[[gnu::noinline]] void soften_tile(PairTile<R>& tile) {
  constexpr float kLog2E = 0x1.715476p+0f;
  const Queries& q = tile.q;
  const Masking& masking = q.args.masking;
  if (masking.softcap > 0) cap_tile(tile);
  const F scale = set1(masking.softcap > 0 ? kLog2E : masking.scale * kLog2E);
  F sum;
  F max = soften_some<(R < 4 ? R : 4)>(tile, 0, scale, sum);
  if constexpr (R > 4) {
    F further_sum;
    const F further_max = soften_some<R - 4>(tile, 4, scale, further_sum);
    max = join(max, further_max);
    sum = join(sum, further_sum);
  }
  if (q.item.result == Result::kPieces) {
    float maxima[kLanes];
    float totals[kLanes];
    store(maxima, max);
    store(totals, sum);
    for (int r = 0; r < R; ++r) {
      float* record = q.record(tile.first + r, tile.piece);
      record[0] = maxima[r];
      record[1] = totals[r];
    }
    return;
  }
  float* max_so_far = q.max + tile.first;
  float* sum_so_far = q.sum + tile.first;
  const Merge m = merge<weight_of>(load(max_so_far), load(sum_so_far), max, sum);
  store_first<R>(max_so_far, m.max);
  store_first<R>(sum_so_far, m.sum);
  store(tile.old_factor, m.old_factor);
  store(tile.piece_factor, m.piece_factor);
}

// Pairs of tokens: [first, last) of them some query sees, [whole_first, whole_last) every one.
struct PairRange {
  int64_t first;
  int64_t whole_first;
  int64_t whole_last;
  int64_t last;
};

template <int R, int V>
inline void add_pair(const PairTile<R>& tile, const uint32_t* row, int64_t pair, F (&sums)[R][V]) {
  Pairs value[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) value[v] = load(row + v * kLanes);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Pairs weight = set1(tile.weights[r][pair]);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sums[r][v] = add_products(sums[r][v], value[v], weight);
  }
}

// What a query does not see of the pair is made 0: 0 times what lies there may be NaN.
template <int R, int V>
inline void add_seen_of_pair(const PairTile<R>& tile, const uint32_t* row, int64_t pair,
                             F (&sums)[R][V]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const uint64_t seen = tile.seen[r] >> (2 * pair);
    const __mmask32 mask = (seen & 1 ? 0x55555555u : 0u) | (seen & 2 ? 0xaaaaaaaau : 0u);
    const Pairs weight = set1(tile.weights[r][pair]);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const Pairs value = {_mm512_maskz_mov_epi16(mask, load(row + v * kLanes).v)};
      sums[r][v] = add_products(sums[r][v], value, weight);
    }
  }
}

template <int R, int V, bool kFetch>
[[gnu::noinline]] void weigh_pairs(const PairTile<R>& tile, const PairRange& range, int64_t dim) {
  const Queries& q = tile.q;
  const int64_t padded = q.args.kv.padded_dim;
  const auto row = [&](int64_t pair) {
    return tile.source.values[pair / kGroupPairs] + pair % kGroupPairs * padded + dim;
  };
  F sums[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sums[r][v] = zero();
  }
  for (int64_t p = range.first; p < range.whole_first; ++p) {
    add_seen_of_pair<R, V>(tile, row(p), p, sums);
  }
  for (int64_t p = range.whole_first; p < range.whole_last; ++p) {
    fetch_ahead<kFetch>(q);
    add_pair<R, V>(tile, row(p), p, sums);
  }
  for (int64_t p = range.whole_last; p < range.last; ++p) {
    add_seen_of_pair<R, V>(tile, row(p), p, sums);
  }
  const bool merged = q.item.result != Result::kPieces;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const int64_t i = tile.first + r;
    float* to = (merged ? q.values + i * padded : q.record(i, tile.piece) + kLanes) + dim;
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      F sum = sums[r][v];
      if (merged) {
        sum = merge_values(load(to + v * kLanes), set1(tile.old_factor[r]), sum,
                           set1(tile.piece_factor[r]));
      }
      store(to + v * kLanes, sum);
    }
  }
}

uint64_t first_bits(int64_t n) {
  return n <= 0 ? 0 : n >= kPiece ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
}
Seen span_of(uint64_t seen) {
  return {__builtin_ctzll(seen), kPiece - __builtin_clzll(seen)};
}

template <int R>
PairRange pair_range(const PairTile<R>& tile, Seen any) {
  uint64_t all = ~uint64_t{0};
  for (int r = 0; r < R; ++r) all &= tile.seen[r];
  PairRange range{any.from / 2, 0, 0, ceil_div(any.to, 2)};
  range.whole_first = range.whole_last = range.last;
  if (all == 0) return range;
  const Seen whole = span_of(all);
  const int64_t first = ceil_div(whole.from, 2);
  const int64_t last = whole.to / 2;
  if (first < last) {
    range.whole_first = first;
    range.whole_last = last;
  }
  return range;
}

template <int R, bool kFetch>
void attend_tile(const Queries& q, const PairSource& source, int64_t piece, int64_t first) {
  PairTile<R> tile(q, source, piece, first);
  uint64_t any = 0;
  for (int r = 0; r < R; ++r) {
    const int64_t position = query_positions(q)[first + r];
    const int64_t base = piece * kPiece;
    tile.seen[r] = first_bits(position + 1 - base) &
                   ~first_bits(first_seen(position, q.args.masking.window) - base);
    any |= tile.seen[r];
  }
  if (any == 0) return;
  const Seen span = span_of(any);
  score_seen<R, kFetch>(tile, span);
  soften_tile(tile);
  const PairRange range = pair_range(tile, span);
  int64_t dim = 0;
  for (; dim + 4 * kLanes <= q.args.kv.padded_dim; dim += 4 * kLanes) {
    weigh_pairs<R, 4, kFetch>(tile, range, dim);
  }
  for (; dim < q.args.kv.padded_dim; dim += kLanes) weigh_pairs<R, 1, kFetch>(tile, range, dim);
}

// Reads grouped blocks where they are. Only groups with a visible token have a block.
PairSource find_pairs(const Queries& q, int64_t base, Seen seen) {
  const KVLayer& kv = q.args.kv;
  PairSource source{};
  for (int64_t t = seen.from / kLanes * kLanes; t < seen.to; t += kLanes) {
    const uint8_t* head = head_of(q.args, q.item, q.kv_head, base + t);
    const int64_t offset = (base + t) % kv.block_size;
    source.keys[t / kLanes] = reinterpret_cast<const uint32_t*>(head) + offset * kv.head_dim / 2;
    source.values[t / kLanes] =
        reinterpret_cast<const uint32_t*>(head + kv.v_offset) + offset * kv.padded_dim / 2;
  }
  return source;
}

// 16 rows of `pairs` pairs as columns.
void turn_pairs(const uint32_t* const* rows, int64_t pairs, uint32_t* columns) {
  for (int64_t d = 0; d < pairs; d += kLanes) {
    const int64_t left = pairs - d;
    F block[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      block[i] = load(reinterpret_cast<const float*>(rows[i] + d), left);
    }
    transpose(block);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      if (i < left) store(reinterpret_cast<float*>(columns + (d + i) * kLanes), block[i]);
    }
  }
}

// Two tokens' V as pairs; what is not there is 0.
void pair_rows(const uint16_t* even, const uint16_t* odd, int64_t dims, uint32_t* pairs) {
  const auto widened = [](const uint16_t* row, int64_t d) {
    if (row == nullptr) return _mm512_setzero_si512();
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + d)));
  };
  for (int64_t d = 0; d < dims; d += kLanes) {
    const __m512i high = _mm512_slli_epi32(widened(odd, d), 16);
    store(pairs + d, Pairs{_mm512_or_si512(widened(even, d), high)});
  }
}

// Collects a piece from blocks whose size is no multiple of 16, token by token.
PairSource gather_pairs(const Queries& q, int64_t base, Seen seen) {
  const KVLayer& kv = q.args.kv;
  PairSource source{};
  const uint32_t* keys[kPiece];
  const uint16_t* values[kPiece] = {};
  for (int64_t t = seen.from; t < seen.to; ++t) {
    const uint8_t* head = head_of(q.args, q.item, q.kv_head, base + t);
    const int64_t offset = (base + t) % kv.block_size * kv.padded_dim;
    keys[t] = reinterpret_cast<const uint32_t*>(head) + offset / 2;
    values[t] = reinterpret_cast<const uint16_t*>(head + kv.v_offset) + offset;
  }
  // Nobody looks at the scores of the tokens that fill up the outer groups.
  for (int64_t t = seen.from; t % kLanes != 0; --t) keys[t - 1] = keys[seen.from];
  for (int64_t t = seen.to; t % kLanes != 0; ++t) keys[t] = keys[seen.to - 1];
  for (int64_t g = seen.from / kLanes; g * kLanes < seen.to; ++g) {
    auto* key = reinterpret_cast<uint32_t*>(q.keys_scratch) + g * kLanes * kv.head_dim / 2;
    auto* value = reinterpret_cast<uint32_t*>(q.values_scratch) + g * kLanes * kv.padded_dim / 2;
    turn_pairs(keys + g * kLanes, kv.head_dim / 2, key);
    for (int64_t p = 0; p < kGroupPairs; ++p) {
      fetch_ahead<true>(q);
      const int64_t t = g * kLanes + 2 * p;
      pair_rows(values[t], values[t + 1], kv.padded_dim, value + p * kv.padded_dim);
    }
    source.keys[g] = key;
    source.values[g] = value;
  }
  return source;
}

template <bool kFetch>
void attend_tiles(const Queries& q, const PairSource& source, int64_t piece) {
  in_tiles<6>(0, q.count, [&]<int R>(int64_t first) {
    attend_tile<R, kFetch>(q, source, piece, first);
  });
}

void attend_pairs(const AttentionArgs& args, const AttentionItem& item, const HeadRange& heads,
                  float* scratch) {
  each_piece(args, item, heads, scratch, [](const Queries& q, int64_t piece) {
    if (piece == q.item.first_piece) round_queries(q);
    const int64_t base = piece * kPiece;
    const Seen seen = q.seen_by_any({0, q.item.count}, base);
    const PairSource source =
        q.args.kv.grouped ? find_pairs(q, base, seen) : gather_pairs(q, base, seen);
    if (q.count < kManyQueries) {
      attend_tiles<true>(q, source, piece);
    } else {
      attend_tiles<false>(q, source, piece);
    }
  });
}

// What the steps of an attention item hand to each other, whatever arithmetic they use, and how its
// pieces come together. Included inside the variant's namespace.

constexpr int kGroups = static_cast<int>(kPiece / kLanes);

// Fetches what the next piece will read, a cache line per call, from within the work on this piece:
// asked for all at once the lines would be waited for, not overlapped.
class Ahead {
 public:
  void add(const uint8_t* run) { runs_[count_++] = run; }
  void start(int64_t run_bytes) {
    run_bytes_ = run_bytes;
    at_ = end_ = nullptr;
  }
  void advance() {
    if (at_ >= end_) {
      if (taken_ == count_) return;
      at_ = runs_[taken_++];
      end_ = at_ + run_bytes_;
    }
    __builtin_prefetch(at_, 0, 2);
    at_ += 64;
  }
  void finish() {
    while (at_ < end_ || taken_ < count_) advance();
  }

 private:
  const uint8_t* runs_[2 * kPiece];
  int count_ = 0;
  int taken_ = 0;
  const uint8_t* at_ = nullptr;
  const uint8_t* end_ = nullptr;
  int64_t run_bytes_ = 0;
};

// Tokens [from, to) of a piece: what a query sees of it.
struct Seen {
  int64_t from;
  int64_t to;
};

// Tokens [first, last) of an item, counted from its first.
struct Tokens {
  int64_t first;
  int64_t last;
};

// Below any score, and far enough that what was seen under it weighs nothing.
constexpr float kLowest = -0x1.fffffep+127f;

// The queries of one item and one KV head, token by token, and what is known of each.
struct Queries {
  const AttentionArgs& args;
  const AttentionItem& item;
  int64_t kv_head;
  int64_t group;  // query heads that share the KV head
  int64_t count;  // tokens * group
  float* scores = nullptr;  // [count][kPiece], after the softmax the weights
  float* values = nullptr;  // [count][padded_dim], of the pieces so far
  float* max = nullptr;
  float* sum = nullptr;
  float* piece_max = nullptr;
  float* piece_sum = nullptr;
  float* old_factor = nullptr;
  float* piece_factor = nullptr;
  float* keys_scratch = nullptr;
  float* values_scratch = nullptr;
  Ahead* ahead = nullptr;

  int64_t token(int64_t t) const { return args.tokens[item.first + t]; }
  int64_t head(int64_t i) const { return kv_head * group + i % group; }
  const float* query(int64_t i) const {
    return args.qkv + token(i / group) * args.stride + head(i) * args.kv.head_dim;
  }
  // What the item's token t sees of the piece at `base`.
  Seen seen(int64_t t, int64_t base) const {
    const int64_t position = args.positions[token(t)];
    const int64_t from = first_seen(position, args.masking.window) - base;
    const int64_t to = position + 1 - base;
    return {from > 0 ? from : 0, to < kPiece ? to : kPiece};
  }
  // What any of the tokens sees of it, and what all do. Both ends rise with t, so the first of some
  // tokens sees least of what is late in the piece, and the last least of what is early.
  Seen seen_by_any(Tokens tokens, int64_t base) const {
    return {seen(tokens.first, base).from, seen(tokens.last - 1, base).to};
  }
  Seen seen_by_all(Tokens tokens, int64_t base) const {
    return {seen(tokens.last - 1, base).from, seen(tokens.first, base).to};
  }
  float* record(int64_t i, int64_t piece) const {
    const int64_t record = item.partial + (piece - item.first_piece) * item.count * args.heads +
                           i / group * args.heads + head(i);
    return args.partials + record * partial_floats(args.kv.padded_dim);
  }
};

Queries lay_out(const AttentionArgs& args, const AttentionItem& item, int64_t kv_head,
                float* scratch) {
  const int64_t group = args.heads / args.kv.kv_heads;
  const int64_t count = item.count * group;
  const int64_t room = round_up(count, kLanes);
  const int64_t padded = args.kv.padded_dim;
  Queries q{args, item, kv_head, group, count};
  q.scores = scratch;
  q.values = q.scores + room * (padded / 2 > kPiece ? padded / 2 : kPiece);
  q.max = q.values + room * padded;
  q.sum = q.max + room;
  q.piece_max = q.sum + room;
  q.piece_sum = q.piece_max + room;
  q.old_factor = q.piece_sum + room;
  q.piece_factor = q.old_factor + room;
  q.keys_scratch = q.piece_factor + room;
  q.values_scratch = q.keys_scratch + kPiece * padded;
  return q;
}

const uint8_t* head_of(const AttentionArgs& a, const AttentionItem& item, int64_t kv_head,
                       int64_t position) {
  const int32_t* table = a.table + a.table_rows[item.row] * a.table_stride;
  return a.kv.data + table[position / a.kv.block_size] * a.kv.block_bytes +
         kv_head * a.kv.head_bytes;
}

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

// What the pieces so far and a further one are worth after both are brought to the larger maximum.
struct Merge {
  F max;
  F old_factor;
  F piece_factor;
  F sum;
};

// `power` is the function that made weights of scores.
template <F (*power)(F)>
Merge merge(F max_so_far, F sum_so_far, F piece_max, F piece_sum) {
  Merge m;
  m.max = max(max_so_far, piece_max);
  m.old_factor = power(sub(max_so_far, m.max));
  m.piece_factor = power(sub(piece_max, m.max));
  m.sum = fma(sum_so_far, m.old_factor, mul(piece_sum, m.piece_factor));
  return m;
}

F merge_values(F so_far, F old_factor, F piece, F piece_factor) {
  return fma(so_far, old_factor, mul(piece, piece_factor));
}

template <F (*power)(F)>
void merge_sums(const Queries& q, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; i += kLanes) {
    const int64_t n = last - i;
    const Merge m = merge<power>(load(q.max + i, n), load(q.sum + i, n), load(q.piece_max + i, n),
                                 load(q.piece_sum + i, n));
    store(q.max + i, m.max, n);
    store(q.sum + i, m.sum, n);
    store(q.old_factor + i, m.old_factor, n);
    store(q.piece_factor + i, m.piece_factor, n);
  }
}

// Nothing seen so far. A first piece is merged with that like any other: it changes no bit, and
// queries that begin at different pieces need not be told apart.
void begin(const Queries& q) {
  for (int64_t i = 0; i < q.count; ++i) {
    q.max[i] = kLowest;
    q.sum[i] = 0;
  }
  for (int64_t i = 0; i < q.count * q.args.kv.padded_dim; i += kLanes) store(q.values + i, zero());
}

// The maximum and sum of some queries' records of a piece.
void write_record_heads(const Queries& q, int64_t piece, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; ++i) {
    float* record = q.record(i, piece);
    record[0] = q.piece_max[i];
    record[1] = q.piece_sum[i];
  }
}

// All pieces of the item as one record per query.
void write_folded(const Queries& q) {
  const int64_t padded = q.args.kv.padded_dim;
  for (int64_t i = 0; i < q.count; ++i) {
    float* record = q.record(i, q.item.first_piece);
    record[0] = q.max[i];
    record[1] = q.sum[i];
    for (int64_t d = 0; d < padded; d += kLanes) {
      store(record + kLanes + d, load(q.values + i * padded + d));
    }
  }
}

void write_outputs(const Queries& q) {
  const int64_t dims = q.args.kv.head_dim;
  for (int64_t i = 0; i < q.count; ++i) {
    const float* values = q.values + i * q.args.kv.padded_dim;
    float* out = q.args.out + q.token(i / q.group) * q.args.out_stride + q.head(i) * dims;
    const F sum = set1(q.sum[i]);
    for (int64_t d = 0; d < dims; d += kLanes) {
      store(out + d, div(load(values + d), sum), dims - d);
    }
  }
}

// Fetching ahead pays for fewer queries than this; from here on the work on a piece hides its
// loads, and widening it once pays.
constexpr int64_t kManyQueries = 12;

// Calls body<R>(i) for tiles of R queries over [first, last), R as large as the registers allow.
template <int R, class Body>
void in_tiles(int64_t first, int64_t last, Body body) {
  for (; first + R <= last; first += R) body.template operator()<R>(first);
  if constexpr (R > 1) in_tiles<R - 1>(first, last, body);
}

// Calls piece(q, p) for each KV head and piece of the item, and sees to what comes before and
// after.
template <class Piece>
void each_piece(const AttentionArgs& args, const AttentionItem& item, const HeadRange& heads,
                float* scratch, Piece piece) {
  const int64_t last = item.first_piece + item.pieces;
  for (int64_t head = heads.first; head < heads.last; ++head) {
    Queries q = lay_out(args, item, head, scratch);
    if (item.result != Result::kPieces) begin(q);
    for (int64_t p = item.first_piece; p < last; ++p) {
      Ahead ahead;
      q.ahead = &ahead;
      if (q.count < kManyQueries) {
        if (p + 1 < last) {
          plan_ahead(q, head, p + 1, ahead);
        } else if (head + 1 < heads.last) {
          plan_ahead(q, head + 1, item.first_piece, ahead);
        }
      }
      piece(q, p);
      ahead.finish();
    }
    if (item.result == Result::kOutput) write_outputs(q);
    if (item.result == Result::kFolded) write_folded(q);
  }
}

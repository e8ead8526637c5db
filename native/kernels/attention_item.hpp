// What the steps of an attention item hand to each other. Included inside the variant's namespace.

constexpr int kGroups = static_cast<int>(kPiece / kLanes);

// Where a piece lies: K per group of 16 tokens as [dimension][16], V per token.
template <class K, class V>
struct Source {
  const K* keys[kGroups];
  const V* values[kPiece];
};

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

// The queries of one item and one KV head, token by token, and what is known of each.
struct Queries {
  const AttentionArgs& args;
  const AttentionItem& item;
  int64_t kv_head;
  int64_t group;  // query heads that share the KV head
  int64_t count;  // tokens * group
  int64_t first_position;
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

  const float* query(int64_t i) const {
    return args.qkv + (item.token + i / group) * args.stride +
           (kv_head * group + i % group) * args.kv.head_dim;
  }
  // What the item's token t sees of the piece at `base`. Both ends rise with t, so the first of
  // some tokens sees least of what is late in the piece, and the last least of what is early.
  Seen seen(int64_t t, int64_t base) const {
    const int64_t position = first_position + t;
    const int64_t from = first_seen(position, args.masking.window) - base;
    const int64_t to = position + 1 - base;
    return {from > 0 ? from : 0, to < kPiece ? to : kPiece};
  }
  // What any of the tokens sees of it, and what all do.
  Seen seen_by_any(Tokens tokens, int64_t base) const {
    return {seen(tokens.first, base).from, seen(tokens.last - 1, base).to};
  }
  Seen seen_by_all(Tokens tokens, int64_t base) const {
    return {seen(tokens.last - 1, base).from, seen(tokens.first, base).to};
  }
  // Whether `piece` is the first that token t sees.
  bool starts_at(int64_t piece, int64_t t) const {
    return first_seen(first_position + t, args.masking.window) / kPiece == piece;
  }
  float* partial(int64_t i, int64_t piece) const {
    const int64_t record = item.partial + (piece - item.first_piece) * item.count * args.heads +
                           i / group * args.heads + kv_head * group + i % group;
    return args.partials + record * partial_floats(args.kv.padded_dim);
  }
};

Queries lay_out(const AttentionArgs& args, const AttentionItem& item, int64_t kv_head,
                float* scratch) {
  const int64_t group = args.heads / args.kv.kv_heads;
  const int64_t count = item.count * group;
  const int64_t room = round_up(count, kLanes);
  Queries q{args, item, kv_head, group, count, args.positions[item.token]};
  q.scores = scratch;
  q.values = q.scores + room * kPiece;
  q.max = q.values + room * args.kv.padded_dim;
  q.sum = q.max + room;
  q.piece_max = q.sum + room;
  q.piece_sum = q.piece_max + room;
  q.old_factor = q.piece_sum + room;
  q.piece_factor = q.old_factor + room;
  q.keys_scratch = q.piece_factor + room;
  q.values_scratch = q.keys_scratch + kPiece * args.kv.padded_dim;
  return q;
}

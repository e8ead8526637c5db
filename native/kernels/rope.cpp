// What happens to q, k and v between their product and attention: norms, RoPE, the way into the
// cache.
#include "variant.hpp"

#include "norm.hpp"

namespace treadle::TREADLE_VARIANT {
namespace {

// Norms x [count], `span` values at a time.
void norm_spans(float* x, int64_t count, int64_t span, const float* weight, float eps) {
  for (int64_t first = 0; first < count; first += span, x += span) {
    const F inverse = set1(inverse_rms(x, span, eps));
    for (int64_t i = 0; i < span; i += kLanes) {
      const int64_t n = span - i;
      store(x + i, mul(mul(load_upto(x + i, n), inverse), load_upto(weight + i, n)), n);
    }
  }
}

void norm_heads(const RopeArgs& a, float* q) {
  if (a.norms.q == nullptr) return;
  const int64_t width = a.heads * a.kv.head_dim;
  norm_spans(q, width, a.norms.q_span, a.norms.q, a.norms.eps);
  norm_spans(q + width, a.kv.kv_heads * a.kv.head_dim, a.norms.k_span, a.norms.k, a.norms.eps);
}

void rotate_halves(float* head, const float* cos, const float* sin, int64_t pairs) {
  for (int64_t i = 0; i < pairs; i += kLanes) {
    const int64_t n = pairs - i;
    const F c = load_upto(cos + i, n);
    const F s = load_upto(sin + i, n);
    const F a = load_upto(head + i, n);
    const F b = load_upto(head + pairs + i, n);
    store(head + i, fma(a, c, mul(b, sub(zero(), s))), n);
    store(head + pairs + i, fma(b, c, mul(a, s)), n);
  }
}

void rotate_neighbours(float* head, const float* cos, const float* sin, int64_t pairs) {
  for (int64_t i = 0; i < pairs; i += kLanes) {
    const int64_t n = pairs - i;
    const int64_t more = 2 * n > kLanes ? 2 * n - kLanes : 0;
    const F c = load_upto(cos + i, n);
    const F s = load_upto(sin + i, n);
    float* at = head + 2 * i;
    F a;
    F b;
    deinterleave(load_upto(at, 2 * n), load_upto(at + kLanes, more), a, b);
    const F turned_a = fma(a, c, mul(b, sub(zero(), s)));
    const F turned_b = fma(b, c, mul(a, s));
    interleave(turned_a, turned_b, a, b);
    store(at, a, 2 * n);
    store(at + kLanes, b, more);
  }
}

void store_rounded(float* p, F x) { store(p, x); }
void store_rounded(Half* p, F x) { store(p, x); }
// To nearest, ties to even; a NaN keeps a fraction bit.
void store_rounded(Brain* p, F x) {
  const I u = bits(x);
  const I odd = bit_and(shift_right<16>(u), set1(1));
  const I rounded = shift_right<16>(add(u, add(odd, set1(0x7fff))));
  const I nan = bit_or(shift_right<16>(u), set1(0x40));
  store_low16(reinterpret_cast<uint16_t*>(p), select(equal(x, x), rounded, nan));
}

// One KV head of a token: what is stored of it, and where its block has that head.
struct StoredHead {
  const float* k;
  const float* v;
  uint8_t* head;
  int64_t offset;  // of the token in its block
};

template <class Store>
void each_head(const RopeArgs& a, int64_t token, Store store) {
  const KVLayer& kv = a.kv;
  const int64_t slot = a.slots[token];
  const float* k = a.qkv + token * a.stride + a.heads * kv.head_dim;
  const float* v = k + kv.kv_heads * kv.head_dim;
  for (int64_t h = 0; h < kv.kv_heads; ++h, k += kv.head_dim, v += kv.head_dim) {
    uint8_t* head = kv.data + slot / kv.block_size * kv.block_bytes + h * kv.head_bytes;
    store(StoredHead{k, v, head, slot % kv.block_size});
  }
}

// Into grouped blocks of pairs. Another thread may be writing the other halves of the pairs.
void store_paired(const RopeArgs& a, int64_t token) {
  const KVLayer& kv = a.kv;
  each_head(a, token, [&](const StoredHead& at) {
    auto* keys = reinterpret_cast<uint32_t*>(at.head) +
                 at.offset / kLanes * kLanes * kv.head_dim / 2 + at.offset % kLanes;
    auto* values = reinterpret_cast<uint16_t*>(at.head + kv.v_offset) +
                   at.offset / 2 * 2 * kv.padded_dim + at.offset % 2;
    for (int64_t d = 0; d < kv.head_dim; d += kLanes) {
      const int64_t n = kv.head_dim - d < kLanes ? kv.head_dim - d : kLanes;
      Brain key[kLanes];
      Brain value[kLanes];
      store_rounded(key, load_upto(at.k + d, n));
      store_rounded(value, load_upto(at.v + d, n));
      for (int64_t i = 0; i < n; i += 2) {
        keys[(d + i) / 2 * kLanes] = key[i].bits | uint32_t{key[i + 1].bits} << 16;
      }
      for (int64_t i = 0; i < n; ++i) values[(d + i) * 2] = value[i].bits;
    }
  });
}

template <class T>
void store_kv(const RopeArgs& a, int64_t token) {
  const KVLayer& kv = a.kv;
  each_head(a, token, [&](const StoredHead& at) {
    T* keys = reinterpret_cast<T*>(at.head);
    T* values = reinterpret_cast<T*>(at.head + kv.v_offset) + at.offset * kv.padded_dim;
    T* key_row = keys + at.offset * kv.padded_dim;
    T* key_column = keys + at.offset / kLanes * kLanes * kv.head_dim + at.offset % kLanes;
    for (int64_t d = 0; d < kv.head_dim; d += kLanes) {
      const int64_t n = kv.head_dim - d;
      store_rounded(values + d, load_upto(at.v + d, n));
      if (!kv.grouped) {
        store_rounded(key_row + d, load_upto(at.k + d, n));
        continue;
      }
      T lanes[kLanes];
      store_rounded(lanes, load_upto(at.k + d, n));
      for (int64_t i = 0; i < (n < kLanes ? n : kLanes); ++i) {
        key_column[(d + i) * kLanes] = lanes[i];
      }
    }
  });
}

}  // namespace

void rope_store(const RopeArgs& a, int64_t first_token, int64_t last_token) {
  for (int64_t token = first_token; token < last_token; ++token) {
    const float* cos = a.cos + a.positions[token] * a.pairs;
    const float* sin = a.sin + a.positions[token] * a.pairs;
    float* head = a.qkv + token * a.stride;
    norm_heads(a, head);
    for (int64_t h = 0; h < a.heads + a.kv.kv_heads; ++h, head += a.kv.head_dim) {
      if (a.interleaved) {
        rotate_neighbours(head, cos, sin, a.pairs);
      } else {
        rotate_halves(head, cos, sin, a.pairs);
      }
    }
    if (a.kv.paired && a.kv.grouped) {
      store_paired(a, token);
      continue;
    }
    switch (a.kv.type) {
      case KVType::kF32:
        store_kv<float>(a, token);
        break;
      case KVType::kF16:
        store_kv<Half>(a, token);
        break;
      case KVType::kBF16:
        store_kv<Brain>(a, token);
        break;
    }
  }
}

}  // namespace treadle::TREADLE_VARIANT

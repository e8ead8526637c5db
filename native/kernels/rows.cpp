// Kernels that work on each row for itself: norms, activations, quantisation.
#include "variant.hpp"

#include "norm.hpp"

namespace treadle::TREADLE_VARIANT {
namespace {

// The sums of the halves of row r's values, as each kind of weight wants them.
void write_sums(QuantRecord& record, int64_t r, int32_t low, int32_t high) {
  const float scale = record.scale[r];
  record.start[r] = -8 * (low + high);
  record.scaled_sum[r] = scale * static_cast<float>(low + high);
  record.half_start[0][r] = -32 * low;
  record.half_start[1][r] = -32 * high;
  record.half_scaled_sum[0][r] = scale * static_cast<float>(low);
  record.half_scaled_sum[1][r] = scale * static_cast<float>(high);
}

// One block of a row: scale = max|x| / 127, value = round-half-even(x / scale).
void quantise_block(F low, F high, QuantRecord& record, int64_t r) {
  const I magnitude = set1(0x7fffffff);
  // Compared as integers, NaN counts as the largest and reaches the scale.
  const int32_t top_bits =
      max_lanes(max(bit_and(bits(low), magnitude), bit_and(bits(high), magnitude)));
  float top;
  __builtin_memcpy(&top, &top_bits, 4);
  const float scale = top / 127.0f;
  record.scale[r] = scale;
  if (scale == 0.0f) {
    __builtin_memset(record.values[r], 0, kQuantBlock);
    write_sums(record, r, 0, 0);
    return;
  }
  // A subnormal scale is coarse and inf / inf is NaN: the bounds keep every value a valid int8.
  const F bound = set1(127.0f);
  const F divisor = set1(scale);
  const I a = to_int(min(max(div(low, divisor), set1(-127.0f)), bound));
  const I b = to_int(min(max(div(high, divisor), set1(-127.0f)), bound));
  store_low8(record.values[r], a);
  store_low8(record.values[r] + kLanes, b);
  write_sums(record, r, sum_lanes(a), sum_lanes(b));
}

// Writes a row in the forms that `out` keeps; value(i, n) gives columns i to i + 16, of which n are
// real.
template <class Value>
void write_row(const Activations& out, int64_t row, Value value) {
  float* values = out.values + row * out.stride;
  if (!out.keep_records) {
    for (int64_t i = 0; i < out.width; i += kLanes) {
      store(values + i, value(i, out.width - i), out.width - i);
    }
    return;
  }
  const int64_t blocks = out.width / kQuantBlock;
  QuantRecord* records = reinterpret_cast<QuantRecord*>(out.records) + row / kRowTile * blocks;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t i = b * kQuantBlock;
    const F low = value(i, kLanes);
    const F high = value(i + kLanes, kLanes);
    if (out.keep_values) {
      store(values + i, low);
      store(values + i + kLanes, high);
    }
    quantise_block(low, high, records[b], row % kRowTile);
  }
}

// Calls body(f) with f the function of 16 lanes that `activation` names.
template <class Body>
void with_activation(Activation activation, Body body) {
  switch (activation) {
    case Activation::kSilu:
      return body([](F x) { return silu(x); });
    case Activation::kGelu:
      return body([](F x) { return gelu(x); });
    case Activation::kGeluTanh:
      return body([](F x) { return gelu_tanh(x); });
  }
}

}  // namespace

void rms_norm(const NormArgs& a, int64_t first_row, int64_t last_row) {
  for (int64_t row = first_row; row < last_row; ++row) {
    const float* x = a.x.values + row * a.x.stride;
    const F inverse = inverse_rms(x, a.x.width, a.eps);
    const auto normed = [&](int64_t i, int64_t n) {
      return mul(mul(load_upto(x + i, n), inverse), load_upto(a.weight + i, n));
    };
    if (!a.accumulate) {
      write_row(a.out, row, normed);
      continue;
    }
    const float* so_far = a.out.values + row * a.out.stride;
    write_row(a.out, row, [&](int64_t i, int64_t n) {
      return add(load_upto(so_far + i, n), normed(i, n));
    });
  }
}

void layer_norm(const NormArgs& a, int64_t first_row, int64_t last_row) {
  const int64_t width = a.x.width;
  for (int64_t row = first_row; row < last_row; ++row) {
    const float* x = a.x.values + row * a.x.stride;
    const float sum = fold(width, [&](F so_far, int64_t i, int64_t left) {
      return add(so_far, load_upto(x + i, left));
    });
    const F mean = set1(sum / static_cast<float>(width));
    const float squares = fold(width, [&](F so_far, int64_t i, int64_t left) {
      const F apart = select(first_lanes(left), sub(load_upto(x + i, left), mean), zero());
      return fma(apart, apart, so_far);
    });
    const F inverse = set1(1.0f / square_root(squares / static_cast<float>(width) + a.eps));
    write_row(a.out, row, [&](int64_t i, int64_t n) {
      const F normed =
          mul(mul(sub(load_upto(x + i, n), mean), inverse), load_upto(a.weight + i, n));
      return a.bias == nullptr ? normed : add(normed, load_upto(a.bias + i, n));
    });
  }
}

void gated(const ActivationArgs& a, int64_t first_row, int64_t last_row) {
  with_activation(a.activation, [&](auto bend) {
    for (int64_t row = first_row; row < last_row; ++row) {
      const float* gate = a.x.values + row * a.x.stride;
      const float* up = gate + a.out.width;
      write_row(a.out, row, [&](int64_t i, int64_t n) {
        return mul(bend(load_upto(gate + i, n)), load_upto(up + i, n));
      });
    }
  });
}

void activate(const ActivationArgs& a, int64_t first_row, int64_t last_row) {
  with_activation(a.activation, [&](auto bend) {
    for (int64_t row = first_row; row < last_row; ++row) {
      const float* x = a.x.values + row * a.x.stride;
      write_row(a.out, row, [&](int64_t i, int64_t n) { return bend(load_upto(x + i, n)); });
    }
  });
}

void copy(const CopyArgs& a, int64_t first_row, int64_t last_row) {
  for (int64_t row = first_row; row < last_row; ++row) {
    const float* x = a.x.values + row * a.x.stride;
    write_row(a.out, row, [&](int64_t i, int64_t n) { return load_upto(x + i, n); });
  }
}

void softcap(const SoftcapArgs& a, int64_t first_row, int64_t last_row) {
  const F cap = set1(a.cap);
  for (int64_t row = first_row; row < last_row; ++row) {
    const float* x = a.x.values + row * a.x.stride;
    write_row(a.x, row, [&](int64_t i, int64_t n) { return capped(load_upto(x + i, n), cap); });
  }
}

void quantise(const QuantiseArgs& a, int64_t first_row, int64_t last_row) {
  Activations out = a.x;
  out.keep_values = false;
  for (int64_t row = first_row; row < last_row; ++row) {
    const float* x = a.x.values + row * a.x.stride;
    write_row(out, row, [&](int64_t i, int64_t) { return load(x + i); });
  }
}

}  // namespace treadle::TREADLE_VARIANT

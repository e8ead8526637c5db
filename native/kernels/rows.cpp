// Kernels that work on each row for itself: norms, activations, quantisation.
#include "variant.hpp"

#include "norm.hpp"
#include "quantise.hpp"

namespace treadle::TREADLE_VARIANT {
namespace {

// Writes columns of a row to the float form; value(i, n) gives columns i to i + 16, of which n are
// real.
template <class Value>
void write_floats(const Activations& out, int64_t row, const Region& region, Value value) {
  float* values = out.values + row * out.stride;
  for (int64_t i = region.first_column; i < region.last_column; i += kLanes) {
    store(values + i, value(i, region.last_column - i), region.last_column - i);
  }
}

// Writes a region of at most a row tile in the forms that `out` keeps; value(row, i, n) as above.
template <class Value>
void write_tile(const Activations& out, const Region& tile, Value value) {
  if (!out.keep_records) {
    for (int64_t row = tile.first_row; row < tile.last_row; ++row) {
      write_floats(out, row, tile, [&](int64_t i, int64_t n) { return value(row, i, n); });
    }
    return;
  }
  QuantRecord* records = reinterpret_cast<QuantRecord*>(out.records) +
                         tile.first_row / kRowTile * (out.width / kQuantBlock);
  const int64_t rows = tile.last_row - tile.first_row;
  for (int64_t i = tile.first_column; i < tile.last_column; i += kQuantBlock) {
    QuantRecord& record = records[i / kQuantBlock];
    TileBlock block;
    for (int64_t r = 0; r < rows; ++r) {
      const F low = value(tile.first_row + r, i, kLanes);
      const F high = value(tile.first_row + r, i + kLanes, kLanes);
      if (out.keep_values) {
        float* values = out.values + (tile.first_row + r) * out.stride + i;
        store(values, low);
        store(values + kLanes, high);
      }
      if (rows <= kFewRows) {
        quantise_row(low, high, r, record);
      } else {
        store(block.values[r], low);
        store(block.values[r] + kLanes, high);
      }
    }
    if (rows > kFewRows) quantise_block(block, rows, record);
  }
}

// Calls body(tile) for each row tile of a region.
template <class Body>
void each_tile(const Region& region, Body body) {
  Region tile = region;
  for (; tile.first_row < region.last_row; tile.first_row = tile.last_row) {
    const int64_t end = tile.first_row + kRowTile;
    tile.last_row = end < region.last_row ? end : region.last_row;
    body(tile);
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

void rms_norm(const NormArgs& a, const Region& region) {
  each_tile(region, [&](const Region& tile) {
    float inverse[kRowTile];
    for (int64_t row = tile.first_row; row < tile.last_row; ++row) {
      inverse[row - tile.first_row] = inverse_rms(a.x.values + row * a.x.stride, a.x.width, a.eps);
    }
    const auto normed = [&](int64_t row, int64_t i, int64_t n) {
      const F x = load_upto(a.x.values + row * a.x.stride + i, n);
      return mul(mul(x, set1(inverse[row - tile.first_row])), load_upto(a.weight + i, n));
    };
    if (!a.accumulate) {
      write_tile(a.out, tile, normed);
      return;
    }
    write_tile(a.out, tile, [&](int64_t row, int64_t i, int64_t n) {
      return add(load_upto(a.out.values + row * a.out.stride + i, n), normed(row, i, n));
    });
  });
}

void layer_norm(const NormArgs& a, const Region& region) {
  each_tile(region, [&](const Region& tile) {
    Centred centred[kRowTile];
    for (int64_t row = tile.first_row; row < tile.last_row; ++row) {
      centred[row - tile.first_row] = centre(a.x.values + row * a.x.stride, a.x.width, a.eps);
    }
    write_tile(a.out, tile, [&](int64_t row, int64_t i, int64_t n) {
      const Centred& by = centred[row - tile.first_row];
      const F apart = sub(load_upto(a.x.values + row * a.x.stride + i, n), set1(by.mean));
      const F normed = mul(mul(apart, set1(by.inverse)), load_upto(a.weight + i, n));
      return a.bias == nullptr ? normed : add(normed, load_upto(a.bias + i, n));
    });
  });
}

void gated(const ActivationArgs& a, const Region& region) {
  with_activation(a.activation, [&](auto bend) {
    each_tile(region, [&](const Region& tile) {
      write_tile(a.out, tile, [&](int64_t row, int64_t i, int64_t n) {
        const float* gate = a.x.values + row * a.x.stride + i;
        return mul(bend(load_upto(gate, n)), load_upto(gate + a.out.width, n));
      });
    });
  });
}

void activate(const ActivationArgs& a, const Region& region) {
  with_activation(a.activation, [&](auto bend) {
    each_tile(region, [&](const Region& tile) {
      write_tile(a.out, tile, [&](int64_t row, int64_t i, int64_t n) {
        return bend(load_upto(a.x.values + row * a.x.stride + i, n));
      });
    });
  });
}

void copy(const CopyArgs& a, const Region& region) {
  each_tile(region, [&](const Region& tile) {
    write_tile(a.out, tile, [&](int64_t row, int64_t i, int64_t n) {
      return load_upto(a.x.values + row * a.x.stride + i, n);
    });
  });
}

void softcap(const SoftcapArgs& a, const Region& region) {
  const F cap = set1(a.cap);
  each_tile(region, [&](const Region& tile) {
    write_tile(a.x, tile, [&](int64_t row, int64_t i, int64_t n) {
      return capped(load_upto(a.x.values + row * a.x.stride + i, n), cap);
    });
  });
}

void quantise(const QuantiseArgs& a, const Region& region) {
  Activations out = a.x;
  out.keep_values = false;
  copy({a.x, out}, region);
}

}  // namespace treadle::TREADLE_VARIANT

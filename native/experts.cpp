#include "experts.hpp"

#include <cstring>

namespace treadle {
namespace {

// Enough rows per pass that each expert's weights are read for many at once, few enough that the
// buffers stay small.
constexpr int64_t kChunkPlaces = 1024;
// Rows this many floats apart compete for the same places in the first cache.
constexpr int64_t kAliasingFloats = 512;

int64_t row_stride(int64_t width) {
  const int64_t stride = round_up(width, kLanes);
  return stride % kAliasingFloats == 0 ? stride + kLanes : stride;
}

int64_t outputs(const Matrix& matrix) {
  return matrix.parts.back().column + matrix.parts.back().n;
}

int64_t most_parts(const std::vector<Matrix>& matrices) {
  size_t most = 0;
  for (const Matrix& matrix : matrices) most = std::max(most, matrix.parts.size());
  return static_cast<int64_t>(most);
}

bool reads_values(const Part& part) {
  return part.type == WeightType::kF32 || part.type == WeightType::kF16 ||
         part.type == WeightType::kBF16;
}

// `a` in the forms alone that the matrix reads.
Activations as_read_by(const Matrix& matrix, Activations a) {
  a.keep_values = std::any_of(matrix.parts.begin(), matrix.parts.end(), reads_values);
  a.keep_records = !std::all_of(matrix.parts.begin(), matrix.parts.end(), reads_values);
  return a;
}

void copy_values(const Activations& from, int64_t row, const Activations& to, int64_t to_row) {
  std::memcpy(to.values + to_row * to.stride, from.values + row * from.stride,
              static_cast<size_t>(from.width) * sizeof(float));
}

// All but the values of a record are arrays of one 4-byte number per row.
void copy_records(const Activations& from, int64_t row, const Activations& to, int64_t to_row) {
  constexpr size_t kNumbers = offsetof(QuantRecord, scale);
  constexpr size_t kRowBytes = sizeof(float) * kRowTile;
  static_assert(kNumbers == sizeof(QuantRecord::values));
  static_assert((sizeof(QuantRecord) - kNumbers) % kRowBytes == 0);
  const int64_t blocks = from.width / kQuantBlock;
  const uint8_t* source = from.records + row / kRowTile * blocks * sizeof(QuantRecord);
  uint8_t* target = to.records + to_row / kRowTile * blocks * sizeof(QuantRecord);
  const size_t r = static_cast<size_t>(row % kRowTile);
  const size_t t = static_cast<size_t>(to_row % kRowTile);
  for (int64_t b = 0; b < blocks; ++b) {
    std::memcpy(target + t * kQuantBlock, source + r * kQuantBlock, kQuantBlock);
    for (size_t at = kNumbers; at < sizeof(QuantRecord); at += kRowBytes) {
      std::memcpy(target + at + t * 4, source + at + r * 4, 4);
    }
    source += sizeof(QuantRecord);
    target += sizeof(QuantRecord);
  }
}

}  // namespace

void ExpertMemory::fit(const Mixture& mixture, int64_t max_rows) {
  const int64_t choices = max_rows * mixture.routing.top_k;
  const int64_t used = std::min(mixture.experts(), choices);
  choices_ = std::max(choices_, choices);
  // Each expert in use leaves less than a row tile unused.
  places_ = std::max(places_, round_up(choices + used * (kRowTile - 1), kRowTile));
  experts_ = std::max(experts_, mixture.experts());
  products_ = std::max(products_, mixture.experts() * std::max(most_parts(mixture.gate_up),
                                                               most_parts(mixture.down)));
  operand_.width = std::max(operand_.width, mixture.x.width);
  gate_up_.width = std::max(gate_up_.width, outputs(mixture.gate_up[0]));
  hidden_.width = std::max(hidden_.width, mixture.down[0].k);
  results_.width = std::max(results_.width, mixture.out.width);
}

void ExpertMemory::allocate() {
  if (experts_ == 0) return;
  chunk_places = std::min(kChunkPlaces, places_);
  chosen.resize(static_cast<size_t>(choices_));
  weights.resize(static_cast<size_t>(choices_));
  places.resize(static_cast<size_t>(choices_));
  sources.resize(static_cast<size_t>(places_));
  tiles.resize(static_cast<size_t>(places_ / kRowTile));
  starts.resize(static_cast<size_t>(experts_ + 1));
  ends.resize(static_cast<size_t>(experts_));
  products.reserve(static_cast<size_t>(products_));
  for (Buffer* buffer : {&operand_, &gate_up_, &hidden_, &results_}) allocate(*buffer);
}

void ExpertMemory::allocate(Buffer& buffer) const {
  // The widest row needs the longest stride or the second longest, by a vector.
  buffer.values = AlignedArray<float>(chunk_places * (row_stride(buffer.width) + kLanes));
  if (!buffer.quantised) return;
  const int64_t records = chunk_places / kRowTile * (buffer.width / kQuantBlock);
  buffer.records = AlignedArray<QuantRecord>(records);
  // A tile's unused rows are computed along; from zeros, they cost no more than others.
  std::memset(static_cast<void*>(buffer.records.get()), 0,
              static_cast<size_t>(records) * sizeof(QuantRecord));
}

int64_t ExpertMemory::bytes() const {
  if (experts_ == 0) return 0;
  const auto size = [](const auto& vector) {
    return static_cast<int64_t>(vector.capacity() * sizeof(vector[0]));
  };
  int64_t total = size(chosen) + size(weights) + size(places) + size(sources) + size(tiles) +
                  size(starts) + size(ends) + size(products);
  for (const Buffer* buffer : {&operand_, &gate_up_, &hidden_, &results_}) {
    total += chunk_places * (row_stride(buffer->width) + kLanes) * sizeof(float);
    if (!buffer->quantised) continue;
    total += chunk_places / kRowTile * (buffer->width / kQuantBlock) * sizeof(QuantRecord);
  }
  return total;
}

Activations ExpertMemory::view(const Buffer& buffer, int64_t width) {
  return {buffer.values.get(), row_stride(width),
          reinterpret_cast<uint8_t*>(buffer.records.get()), width, true, buffer.quantised};
}

Activations ExpertMemory::operand(int64_t width) const { return view(operand_, width); }
Activations ExpertMemory::gate_up(int64_t width) const { return view(gate_up_, width); }
Activations ExpertMemory::hidden(int64_t width) const { return view(hidden_, width); }
Activations ExpertMemory::results(int64_t width) const { return view(results_, width); }

Experts::Experts(Mixture mixture, const Kernels& kernels, ExpertMemory& memory)
    : mixture_(std::move(mixture)),
      kernels_(kernels),
      memory_(memory),
      hidden_width_(mixture_.down[0].k) {}

void Experts::run(Pool& pool, int64_t rows, float* scratch, int64_t scratch_stride) {
  if (rows == 0) return;
  route(pool, rows, scratch, scratch_stride);
  group(rows);
  const int64_t places = memory_.starts[static_cast<size_t>(mixture_.experts())];
  for (int64_t first = 0; first < places;) {
    const Chunk chunk = chunk_from(first);
    run_chunk(pool, chunk, rows);
    first = chunk.last;
  }
}

Cost Experts::cost(int64_t rows) const {
  const int64_t top_k = mixture_.routing.top_k;
  const int64_t width = mixture_.out.width;
  // Each choice activates its hidden values, and is weighted and added to the row's output.
  Cost cost{0, 0, rows * (row_bytes(mixture_.x) + 8 * width),
            rows * top_k * (kGatedOperations * hidden_width_ + 2 * width)};
  if (rows == 0) return cost;
  for (size_t e = 0; e < mixture_.down.size(); ++e) {
    const int64_t chosen = memory_.ends[e] - memory_.starts[e];
    if (chosen == 0) continue;
    for (const Matrix* matrix : {&mixture_.gate_up[e], &mixture_.down[e]}) {
      for (const Part& part : matrix->parts) {
        cost.weight_bytes += part.panels * part.panel_bytes;
        cost.operations += 2 * chosen * part.n * part.k;
      }
    }
  }
  return cost;
}

void Experts::route(Pool& pool, int64_t rows, float* scratch, int64_t scratch_stride) {
  const Activations& router = mixture_.router;
  const RouteArgs args{router.values,
                       router.stride,
                       router.width,
                       mixture_.routing.top_k,
                       mixture_.routing.renormalise,
                       memory_.chosen.data(),
                       memory_.weights.data()};
  each_row_on_thread(pool, rows, router.width * (1 + args.top_k / 8),
                     [&](int64_t first, int64_t last, int thread) {
                       kernels_.route(args, first, last, scratch + thread * scratch_stride);
                     });
}

// Sorts the choices by expert, and within one by row.
void Experts::group(int64_t rows) {
  ExpertMemory& m = memory_;
  const int64_t experts = mixture_.experts();
  const size_t choices = static_cast<size_t>(rows * mixture_.routing.top_k);
  const auto index = [](auto i) { return static_cast<size_t>(i); };
  std::fill(m.ends.begin(), m.ends.end(), 0);
  for (size_t c = 0; c < choices; ++c) ++m.ends[index(m.chosen[c])];
  m.starts[0] = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t first = m.starts[index(e)];
    const int64_t last = first + round_up(m.ends[index(e)], kRowTile);
    m.starts[index(e + 1)] = last;
    m.ends[index(e)] = first;
    for (int64_t p = first; p < last; p += kRowTile) {
      m.tiles[index(p / kRowTile)] = static_cast<int32_t>(e);
    }
  }
  for (size_t c = 0; c < choices; ++c) {
    const int64_t place = m.ends[index(m.chosen[c])]++;
    m.places[c] = static_cast<int32_t>(place);
    m.sources[index(place)] = static_cast<int32_t>(c / index(mixture_.routing.top_k));
  }
}

// As many whole experts as the buffers hold; of one that alone is too large, as much as they hold.
Experts::Chunk Experts::chunk_from(int64_t first) const {
  const int64_t most = first + memory_.chunk_places;
  const auto starts = memory_.starts.begin();
  const int64_t last = *(std::upper_bound(starts, starts + mixture_.experts() + 1, most) - 1);
  return {first, last > first ? last : most};
}

void Experts::run_chunk(Pool& pool, Chunk chunk, int64_t rows) {
  const Activations operand = memory_.operand(mixture_.x.width);
  const Activations gate_up = memory_.gate_up(2 * hidden_width_);
  gather(pool, chunk);
  multiply(pool, chunk, mixture_.gate_up, operand, gate_up);
  activate(pool, chunk);
  multiply(pool, chunk, mixture_.down, memory_.hidden(hidden_width_),
           memory_.results(mixture_.out.width));
  mix(pool, chunk, rows);
}

void Experts::gather(Pool& pool, Chunk chunk) {
  const Activations operand = memory_.operand(mixture_.x.width);
  const int64_t first_tile = chunk.first / kRowTile;
  each_row(pool, chunk.last / kRowTile - first_tile, operand.width, [&](int64_t first, int64_t last) {
    for (int64_t tile = first_tile + first; tile < first_tile + last; ++tile) {
      const size_t expert = static_cast<size_t>(memory_.tiles[static_cast<size_t>(tile)]);
      const Activations to = as_read_by(mixture_.gate_up[expert], operand);
      const int64_t end = std::min((tile + 1) * kRowTile, memory_.ends[expert]);
      for (int64_t place = tile * kRowTile; place < end; ++place) {
        const int64_t row = memory_.sources[static_cast<size_t>(place)];
        if (to.keep_values) copy_values(mixture_.x, row, to, place - chunk.first);
        if (to.keep_records) copy_records(mixture_.x, row, to, place - chunk.first);
      }
    }
  });
}

void Experts::multiply(Pool& pool, Chunk chunk, const std::vector<Matrix>& matrices,
                       const Activations& from, const Activations& to) {
  std::vector<Product>& products = memory_.products;
  products.clear();
  for (size_t e = 0; e < matrices.size(); ++e) {
    const int64_t first = std::max(memory_.starts[e], chunk.first);
    const int64_t last = std::min(memory_.ends[e], chunk.last);
    if (first >= last) continue;
    for (const Part& part : matrices[e].parts) {
      const LinearArgs args{part, from, to.values, to.stride, nullptr, false, false};
      products.push_back({args, first - chunk.first, last - chunk.first});
    }
  }
  run_products(pool, kernels_, products.data(), static_cast<int64_t>(products.size()));
}

void Experts::activate(Pool& pool, Chunk chunk) {
  const Activations gate_up = memory_.gate_up(2 * hidden_width_);
  const Activations hidden = memory_.hidden(hidden_width_);
  const int64_t first_tile = chunk.first / kRowTile;
  each_row(pool, chunk.last / kRowTile - first_tile, gate_up.width, [&](int64_t first, int64_t last) {
    for (int64_t tile = first_tile + first; tile < first_tile + last; ++tile) {
      const size_t expert = static_cast<size_t>(memory_.tiles[static_cast<size_t>(tile)]);
      const ActivationArgs args{gate_up, as_read_by(mixture_.down[expert], hidden),
                                mixture_.routing.activation};
      const int64_t end = std::min((tile + 1) * kRowTile, memory_.ends[expert]);
      kernels_.gated(args, {tile * kRowTile - chunk.first, end - chunk.first, 0, hidden_width_});
    }
  });
}

void Experts::mix(Pool& pool, Chunk chunk, int64_t rows) {
  const Activations results = memory_.results(mixture_.out.width);
  const MixArgs args{results.values,
                     results.stride,
                     memory_.places.data(),
                     memory_.weights.data(),
                     mixture_.routing.top_k,
                     chunk.first,
                     chunk.last,
                     mixture_.out.values,
                     mixture_.out.stride,
                     mixture_.out.width};
  each_row(pool, rows, args.width, [&](int64_t first, int64_t last) {
    kernels_.mix(args, first, last);
  });
}

}  // namespace treadle

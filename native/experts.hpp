// Mixtures of experts: tokens are grouped by the experts they chose, so that a step reads each
// expert's weights once.
#pragma once

#include <vector>

#include "aligned_array.hpp"
#include "cost.hpp"
#include "matrix.hpp"
#include "products.hpp"

namespace treadle {

struct Routing {
  int64_t top_k;
  bool renormalise;
  Activation activation;
};

// One layer's experts and their operands; gate_up[e] and down[e] belong together.
struct Mixture {
  Activations x;
  Activations router;
  std::vector<Matrix> gate_up;
  std::vector<Matrix> down;
  Activations out;
  Routing routing;

  int64_t experts() const { return static_cast<int64_t>(down.size()); }
};

// What all mixtures of a program work in, one after the other; sized for the largest of each.
//
// Every choice of a token has a place; places of one expert lie together and begin with a row tile.
// A chunk of places at a time passes through the buffers.
class ExpertMemory {
 public:
  void fit(const Mixture& mixture, int64_t max_rows);
  void allocate();
  // What is allocated.
  int64_t bytes() const;

  // Places of a chunk at most, whole row tiles.
  int64_t chunk_places = 0;

  std::vector<int32_t> chosen;   // [row][top_k], the experts, ascending
  std::vector<float> weights;    // [row][top_k]
  std::vector<int32_t> places;   // [row][top_k]
  std::vector<int32_t> sources;  // [place] -> row
  std::vector<int32_t> tiles;    // [place / kRowTile] -> expert
  std::vector<int64_t> starts;   // [expert] -> first place; then the end
  std::vector<int64_t> ends;     // [expert] -> past its last place in use
  std::vector<Product> products;

  // Views of the buffers, a row per place of the chunk.
  Activations operand(int64_t width) const;
  Activations gate_up(int64_t width) const;
  Activations hidden(int64_t width) const;
  Activations results(int64_t width) const;

 private:
  // A float row and a quantised one of a buffer, at most.
  struct Buffer {
    int64_t width = 0;
    bool quantised = false;
    AlignedArray<float> values;
    AlignedArray<QuantRecord> records;
  };

  void allocate(Buffer& buffer) const;
  static Activations view(const Buffer& buffer, int64_t width);

  int64_t choices_ = 0;
  int64_t places_ = 0;
  int64_t experts_ = 0;
  int64_t products_ = 0;
  Buffer operand_{0, true, {}, {}};
  Buffer gate_up_;
  Buffer hidden_{0, true, {}, {}};
  Buffer results_;
};

class Experts {
 public:
  // The memory is allocated before the first run.
  Experts(Mixture mixture, const Kernels& kernels, ExpertMemory& memory);

  // `scratch` has for each thread, `scratch_stride` apart, room for a row of the router.
  void run(Pool& pool, int64_t rows, float* scratch, int64_t scratch_stride);

  // Of the last run of the program's mixtures, which was this one's: of the experts that it chose.
  Cost cost(int64_t rows) const;

 private:
  // Places [first, last), whole row tiles.
  struct Chunk {
    int64_t first;
    int64_t last;
  };

  void route(Pool& pool, int64_t rows, float* scratch, int64_t scratch_stride);
  void group(int64_t rows);
  Chunk chunk_from(int64_t first) const;
  void run_chunk(Pool& pool, Chunk chunk, int64_t rows);
  void gather(Pool& pool, Chunk chunk);
  void multiply(Pool& pool, Chunk chunk, const std::vector<Matrix>& matrices,
                const Activations& from, const Activations& to);
  void activate(Pool& pool, Chunk chunk);
  void mix(Pool& pool, Chunk chunk, int64_t rows);

  Mixture mixture_;
  const Kernels& kernels_;
  ExpertMemory& memory_;
  int64_t hidden_width_;
};

}  // namespace treadle

// Products of quantised weights with quantised activations.
//
// Per group of 16 or 32: an integer dot product, exact however it is split; then one float step
// acc = fma(sum, weight scale * activation scale, acc), for types with minima a second one. Scales
// of two levels are multiplied first, which is exact. Groups are added in K order, so a row has one
// result whatever rows share its tile.
#include "variant.hpp"

#include "output.hpp"

namespace treadle::TREADLE_VARIANT {
namespace {

struct QuantPanel {
  const uint8_t* data;
  PanelLayout layout;
};

template <WeightType kType>
constexpr QuantFormat kFormat = format_of(kType);
template <WeightType kType>
constexpr int kGroups = kQuantBlock / kFormat<kType>.group;

// The largest number that the kernels multiply.
constexpr int largest_number(const QuantFormat& format) {
  int largest = (1 << (format.low_bits + format.high_bits)) - 1;
  if (format.table == nullptr) return largest;
  largest = 0;
  for (int i = 0; i < 16; ++i) {
    const int number = format.table[i] + format.offset;
    if (number > largest) largest = number;
  }
  return largest;
}
template <WeightType kType>
constexpr int kLargest = largest_number(kFormat<kType>);

// How far ahead of the block in work its panel is fetched, to the second-level cache, which takes
// more misses at once than the first; runs on into the panels that follow.
constexpr int64_t kPrefetchBytes = 16384;

// Fetches what one block adds to all planes, in the order in which they lie.
template <WeightType kType>
[[gnu::always_inline]] inline void prefetch_block(const uint8_t* panel, int64_t block) {
  // Per block, of a type without chunks the bytes of any eight will do.
  constexpr int64_t kBytes = layout_of(kType, kSuperBlocks).chunk_bytes / kSuperBlocks;
  const uint8_t* ahead = panel + kPrefetchBytes + block * kBytes;
#pragma GCC unroll 16
  for (int64_t i = 0; i < kBytes; i += 64) __builtin_prefetch(ahead + i, 0, 2);
}

#if TREADLE_VARIANT_NUMBER >= 3
#include "quant_avx512.hpp"
#elif TREADLE_VARIANT_NUMBER == 2
#include "quant_avx2.hpp"
#else
#include "quant_portable.hpp"
#endif

template <WeightType kType, int R>
void quant_rows(const LinearArgs& a, int64_t panel, int64_t row, int64_t rows) {
  const int64_t blocks = a.part.k / kQuantBlock;
  const QuantPanel source{a.part.data + panel * a.part.panel_bytes, layout_of(kType, blocks)};
  const QuantRecord* x =
      reinterpret_cast<const QuantRecord*>(a.x.records) + row / kRowTile * blocks;
  F sums[R];
  quant_tile<kType, R>(source, x, blocks, a.stream, sums);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    if (r < rows) store_output(a, panel * kLanes, row + r, sums[r]);
  }
}

}  // namespace

// A tile's unused rows are computed along where that makes the next size; nobody reads them.
template <WeightType kType>
void linear_quant(const LinearArgs& a, int64_t first_panel, int64_t last_panel, int64_t first_row,
                  int64_t last_row) {
  for (int64_t row = first_row; row < last_row; row += kRowTile) {
    const int64_t rows = last_row - row < kRowTile ? last_row - row : kRowTile;
    for (int64_t panel = first_panel; panel < last_panel; ++panel) {
      if (rows > 12) {
        quant_rows<kType, 16>(a, panel, row, rows);
      } else if (rows > 8) {
        quant_rows<kType, 12>(a, panel, row, rows);
      } else if (rows > 6) {
        quant_rows<kType, 8>(a, panel, row, rows);
      } else if (rows > 4) {
        quant_rows<kType, 6>(a, panel, row, rows);
      } else if (rows > 2) {
        quant_rows<kType, 4>(a, panel, row, rows);
      } else if (rows > 1) {
        quant_rows<kType, 2>(a, panel, row, rows);
      } else {
        quant_rows<kType, 1>(a, panel, row, rows);
      }
    }
  }
}

#define TREADLE_QUANT(type)                                                                   \
  template void linear_quant<WeightType::type>(const LinearArgs&, int64_t, int64_t, int64_t, \
                                               int64_t)
TREADLE_QUANT(kQ4_0);
TREADLE_QUANT(kQ4_1);
TREADLE_QUANT(kQ5_0);
TREADLE_QUANT(kQ5_1);
TREADLE_QUANT(kQ8_0);
TREADLE_QUANT(kQ2_K);
TREADLE_QUANT(kQ3_K);
TREADLE_QUANT(kQ4_K);
TREADLE_QUANT(kQ5_K);
TREADLE_QUANT(kQ6_K);
TREADLE_QUANT(kIQ4_NL);
TREADLE_QUANT(kIQ4_XS);
TREADLE_QUANT(kMXFP4);

}  // namespace treadle::TREADLE_VARIANT

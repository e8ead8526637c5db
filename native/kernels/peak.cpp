// The two units at their best: chains of multiply-adds in registers, enough of them that no step
// waits for the one before. Nothing is computed that anybody wants.
#include "variant.hpp"

namespace treadle::TREADLE_VARIANT {
namespace {

// So many fit the registers, and hide what a step takes.
constexpr int kByteChains = TREADLE_VARIANT_NUMBER >= 3 ? 12 : 4;
constexpr int kFloatChains = kAccumulators;
constexpr int kOperands = 16;
constexpr int64_t kVectorBytes = 64;

#if TREADLE_VARIANT_NUMBER >= 3

using Bytes = __m512i;
using Sums = __m512i;
inline Sums no_sums() { return _mm512_setzero_si512(); }
inline Bytes load_operand(const uint8_t* p) { return _mm512_load_si512(p); }
inline Sums step(Sums sums, Bytes w, Bytes x) { return _mm512_dpbusd_epi32(sums, w, x); }
inline float first(Sums sums) { return static_cast<float>(_mm512_cvtsi512_si32(sums)); }

#elif TREADLE_VARIANT_NUMBER == 2

using Bytes = __m256i;
using Sums = __m256i;
inline Sums no_sums() { return _mm256_setzero_si256(); }
inline Bytes load_operand(const uint8_t* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}
// Sums of 16 bits, as the products have them before they are widened.
inline Sums step(Sums sums, Bytes w, Bytes x) {
  return _mm256_add_epi16(sums, _mm256_maddubs_epi16(w, x));
}
inline float first(Sums sums) { return static_cast<float>(_mm256_extract_epi16(sums, 0)); }

#else

typedef uint16_t Bytes __attribute__((vector_size(16)));
using Sums = Bytes;
inline Sums no_sums() { return Sums{}; }
inline Bytes load_operand(const uint8_t* p) {
  Bytes read;
  __builtin_memcpy(&read, p, sizeof read);
  return read;
}
inline Sums step(Sums sums, Bytes w, Bytes x) { return sums + w * x; }
inline float first(Sums sums) { return static_cast<float>(sums[0]); }

#endif

// The portable variant widens bytes before it multiplies them.
constexpr int64_t kProducts =
    static_cast<int64_t>(sizeof(Bytes)) / (TREADLE_VARIANT_NUMBER == 1 ? 2 : 1);

}  // namespace

int64_t byte_peak(int64_t rounds, float* sink) {
  alignas(64) uint8_t numbers[(kByteChains + kOperands) * kVectorBytes];
  for (size_t i = 0; i < sizeof numbers; ++i) numbers[i] = static_cast<uint8_t>(i % 7);
  Bytes w[kByteChains];
  Sums sums[kByteChains];
  for (int c = 0; c < kByteChains; ++c) {
    w[c] = load_operand(numbers + c * kVectorBytes);
    sums[c] = no_sums();
  }
  for (int64_t round = 0; round < rounds; ++round) {
    const Bytes x = load_operand(numbers + (kByteChains + round % kOperands) * kVectorBytes);
#pragma GCC unroll 16
    for (int c = 0; c < kByteChains; ++c) sums[c] = step(sums[c], w[c], x);
  }
  sink[0] = 0;
  for (int c = 0; c < kByteChains; ++c) sink[0] += first(sums[c]);
  return rounds * kByteChains * kProducts * 2;
}

int64_t float_peak(int64_t rounds, float* sink) {
  const F a = set1(0.5f);
  F sums[kFloatChains];
  for (int c = 0; c < kFloatChains; ++c) sums[c] = set1(static_cast<float>(c));
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 32
    for (int c = 0; c < kFloatChains; ++c) sums[c] = fma(sums[c], a, a);
  }
  for (int c = 1; c < kFloatChains; ++c) sums[0] = add(sums[0], sums[c]);
  store(sink, sums[0]);
  return rounds * kFloatChains * kLanes * 2;
}

}  // namespace treadle::TREADLE_VARIANT

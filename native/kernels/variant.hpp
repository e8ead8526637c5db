// Binds a kernel source to the instruction set it is being compiled for.
//
// The build compiles each source once per variant with TREADLE_VARIANT set to the variant's name,
// which is also its namespace. Kernel sources use no standard library: an inline function or
// template from there, compiled with wider instructions, could be linked into the common code.
#pragma once

#define TREADLE_VARIANT_portable 1
#define TREADLE_VARIANT_avx2 2
#define TREADLE_VARIANT_avx512 3
#define TREADLE_VARIANT_avx512bf16 4
#define TREADLE_JOIN2(a, b) a##b
#define TREADLE_JOIN(a, b) TREADLE_JOIN2(a, b)
#define TREADLE_VARIANT_NUMBER TREADLE_JOIN(TREADLE_VARIANT_, TREADLE_VARIANT)

#if TREADLE_VARIANT_NUMBER >= 3
#include "simd_avx512.hpp"
#elif TREADLE_VARIANT_NUMBER == 2
#include "simd_avx2.hpp"
#else
#include "simd_portable.hpp"
#endif

#include "math.hpp"

// Whether the variant has instructions for pairs of bf16.
#if TREADLE_VARIANT_NUMBER == TREADLE_VARIANT_avx512bf16
#define TREADLE_PAIRS_BF16 1
#endif

namespace treadle::TREADLE_VARIANT {

#if defined(TREADLE_PAIRS_BF16)
constexpr bool kPairsBF16 = true;
#else
constexpr bool kPairsBF16 = false;
#endif

template <WeightType kType>
void linear_float(const LinearArgs&, int64_t, int64_t, int64_t, int64_t);
template <WeightType kType>
void linear_quant(const LinearArgs&, int64_t, int64_t, int64_t, int64_t);
void rms_norm(const NormArgs&, const Region&);
void layer_norm(const NormArgs&, const Region&);
void gated(const ActivationArgs&, const Region&);
void activate(const ActivationArgs&, const Region&);
void copy(const CopyArgs&, const Region&);
void softcap(const SoftcapArgs&, const Region&);
void quantise(const QuantiseArgs&, const Region&);
void rope_store(const RopeArgs&, int64_t, int64_t);
void attend(const AttentionArgs&, const AttentionItem&, const HeadRange&, float*);
void combine(const AttentionArgs&, const CombineItem&, int64_t);
void route(const RouteArgs&, int64_t, int64_t, float*);
void mix(const MixArgs&, int64_t, int64_t);
float largest(const float*, int64_t);
int64_t first_equal(const float*, int64_t, float);
void exponentials(const float*, int64_t, float, float, float*, float*);
void sums_at_least(const float*, int64_t, float, float*);
int64_t collect_at_least(const float*, int64_t, float, int32_t*);
int64_t next_above(const float*, int64_t, int64_t, float);
int64_t byte_peak(int64_t, float*);
int64_t float_peak(int64_t, float*);

}  // namespace treadle::TREADLE_VARIANT

// The function table of one variant: all that the common code sees of it.
#include "variant.hpp"

#define TREADLE_TEXT2(x) #x
#define TREADLE_TEXT(x) TREADLE_TEXT2(x)

namespace treadle::TREADLE_VARIANT {

extern const Kernels kernels;
const Kernels kernels = {
    .name = TREADLE_TEXT(TREADLE_VARIANT),
    .pairs_bf16 = kPairsBF16,
    .linear = {linear_float<WeightType::kF32>, linear_float<WeightType::kF16>,
               linear_float<WeightType::kBF16>, linear_quant<WeightType::kQ4_0>,
               linear_quant<WeightType::kQ4_1>, linear_quant<WeightType::kQ5_0>,
               linear_quant<WeightType::kQ5_1>, linear_quant<WeightType::kQ8_0>,
               linear_quant<WeightType::kQ2_K>, linear_quant<WeightType::kQ3_K>,
               linear_quant<WeightType::kQ4_K>, linear_quant<WeightType::kQ5_K>,
               linear_quant<WeightType::kQ6_K>, linear_quant<WeightType::kIQ4_NL>,
               linear_quant<WeightType::kIQ4_XS>, linear_quant<WeightType::kMXFP4>},
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .gated = gated,
    .activate = activate,
    .copy = copy,
    .softcap = softcap,
    .quantise = quantise,
    .rope_store = rope_store,
    .attend = attend,
    .combine = combine,
    .route = route,
    .mix = mix,
    .largest = largest,
    .first_equal = first_equal,
    .exponentials = exponentials,
    .sums_at_least = sums_at_least,
    .collect_at_least = collect_at_least,
    .next_above = next_above,
    .byte_peak = byte_peak,
    .float_peak = float_peak,
};

}  // namespace treadle::TREADLE_VARIANT

// Functions of 16 lanes built from the variant's primitives. A lane's result depends on that lane
// alone, so a value has one exponential wherever it stands.
#pragma once

namespace treadle::TREADLE_VARIANT {
namespace {

// 2^n for n in [-126, 127].
inline F power_of_two(I n) { return from_bits(shift_left<23>(add(n, set1(127)))); }

// exp(x) over the whole float range: 0 at -inf, inf from 88.73 on, subnormals rounded once, NaN
// kept. x = n ln 2 + r; exp(r) = 1 + r + r² q(r) with q fitted for |r| <= ln 2 / 2, good to 4e-9.
inline F exponential(F x) {
  // NaN survives: max and min return their second operand then.
  x = min(set1(89.0f), max(set1(-104.0f), x));
  const I n = to_int(mul(x, set1(0x1.715476p+0f)));
  const F whole = to_float(n);
  F r = fma(whole, set1(-0x1.62e400p-1f), x);
  r = fma(whole, set1(-0x1.7f7d1cp-20f), r);
  F q = set1(0x1.6a23cep-10f);
  q = fma(q, r, set1(0x1.123a20p-7f));
  q = fma(q, r, set1(0x1.5558f2p-5f));
  q = fma(q, r, set1(0x1.555492p-3f));
  q = fma(q, r, set1(0x1.fffffcp-2f));
  const F value = add(set1(1.0f), fma(mul(r, r), q, r));
  // Two steps, since 2^n itself leaves the float range at both ends.
  const I half = shift_right<1>(n);
  return mul(mul(value, power_of_two(half)), power_of_two(sub(n, half)));
}

inline F silu(F x) {
  return div(x, add(set1(1.0f), exponential(sub(zero(), x))));
}

}  // namespace
}  // namespace treadle::TREADLE_VARIANT

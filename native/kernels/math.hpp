// Functions of 16 lanes built from the variant's primitives. A lane's result depends on that lane
// alone, so a value has one exponential wherever it stands.
#pragma once

namespace treadle::TREADLE_VARIANT {
namespace {

// 2^n for n in [-126, 127].
inline F power_of_two(I n) { return from_bits(shift_left<23>(add(n, set1(127)))); }

// exp(x) = 2^n value. x = n ln 2 + r; value = exp(r) = 1 + r + r² q(r) with q fitted for
// |r| <= ln 2 / 2, good to 4e-9.
struct PowerOfE {
  F value;
  I n;
};
inline PowerOfE power_of_e(F x) {
  const I n = to_int(mul(x, set1(0x1.715476p+0f)));
  const F whole = to_float(n);
  F r = fma(whole, set1(-0x1.62e400p-1f), x);
  r = fma(whole, set1(-0x1.7f7d1cp-20f), r);
  F q = set1(0x1.6a23cep-10f);
  q = fma(q, r, set1(0x1.123a20p-7f));
  q = fma(q, r, set1(0x1.5558f2p-5f));
  q = fma(q, r, set1(0x1.555492p-3f));
  q = fma(q, r, set1(0x1.fffffcp-2f));
  return {add(set1(1.0f), fma(mul(r, r), q, r)), n};
}

// exp(x) over the whole float range: 0 at -inf, inf from 88.73 on, subnormals rounded once, NaN
// kept.
inline F exponential(F x) {
  // NaN survives: max and min return their second operand then.
  const PowerOfE power = power_of_e(min(set1(89.0f), max(set1(-104.0f), x)));
  // Two steps, since 2^n itself leaves the float range at both ends.
  const I half = shift_right<1>(power.n);
  return mul(mul(power.value, power_of_two(half)), power_of_two(sub(power.n, half)));
}

// The same for x in [-87, 88], NaN kept.
inline F exponential_within(F x) {
  const PowerOfE power = power_of_e(x);
  return mul(power.value, power_of_two(power.n));
}

inline F magnitude(F x) { return from_bits(bit_and(bits(x), set1(0x7fffffff))); }

// tanh(x) within 2 ulp, NaN kept. Near 0, x + x³ p(x²) with p fitted for |x| <= 0.6; further out
// 1 - 2 / (exp(2|x|) + 1), where that loses nothing.
inline F hyperbolic_tangent(F x) {
  const F square = mul(x, x);
  F p = set1(-0x1.9add90p-8f);
  p = fma(p, square, set1(0x1.59e25ap-6f));
  p = fma(p, square, set1(-0x1.b955ecp-5f));
  p = fma(p, square, set1(0x1.110ee0p-3f));
  p = fma(p, square, set1(-0x1.555554p-2f));
  const F near = fma(mul(x, square), p, x);
  const F size = magnitude(x);
  const F one = set1(1.0f);
  const F far = sub(one, div(set1(2.0f), add(exponential(add(size, size)), one)));
  const I sign = bit_and(bits(x), set1(static_cast<int32_t>(0x80000000)));
  return select(greater(set1(0.6f), size), near, from_bits(bit_or(bits(far), sign)));
}

inline F capped(F x, F cap) { return mul(cap, hyperbolic_tangent(div(x, cap))); }

// The chance that a standard normal variable is below x, within 4 ulp on both tails. With a = |x|
// and t = 1 / (1 + 5a/16), the chance of less than -a is exp(-a² / 2) t p(t), p fitted for a up to
// 14.6, where the exponential ends. Of a, the high half squares exactly.
inline F normal_chance(F x) {
  const F a = min(set1(20.0f), magnitude(x));
  const F one = set1(1.0f);
  const F t = div(one, fma(set1(0.3125f), a, one));
  F p = set1(-0x1.38679cp-6f);
  p = fma(p, t, set1(0x1.7770aep-4f));
  p = fma(p, t, set1(-0x1.367f4ap-3f));
  p = fma(p, t, set1(0x1.33110cp-4f));
  p = fma(p, t, set1(-0x1.948166p-9f));
  p = fma(p, t, set1(0x1.c95180p-5f));
  p = fma(p, t, set1(0x1.709daep-4f));
  p = fma(p, t, set1(0x1.ca5b68p-4f));
  p = fma(p, t, set1(0x1.fef7b6p-4f));
  p = fma(p, t, set1(0x1.fea13cp-4f));
  const F high = from_bits(bit_and(bits(a), set1(static_cast<int32_t>(0xfffff000))));
  const F minus_half = set1(-0.5f);
  const F rest = mul(sub(a, high), mul(add(a, high), minus_half));
  const F scale = mul(exponential(mul(mul(high, high), minus_half)), exponential(rest));
  const F below = mul(scale, mul(t, p));
  return select(greater(x, zero()), sub(one, below), below);
}

// x / (1 + exp(-t)), t of the sign of x and NaN with it; 0, nearly, for x below -88. Of what it is
// divided by nothing can overflow, so 2^n takes one step.
inline F times_logistic(F x, F t) {
  const F bound = set1(88.0f);
  const F minus_t = max(set1(-87.0f), min(bound, sub(zero(), t)));
  return div(max(sub(zero(), bound), x), add(set1(1.0f), exponential_within(minus_t)));
}

inline F silu(F x) { return times_logistic(x, x); }

inline F gelu(F x) { return mul(x, normal_chance(x)); }

// x (1 + tanh(u)) / 2 = x / (1 + exp(-2u)), which keeps its digits where tanh(u) nears -1;
// u = sqrt(2 / pi) (x + 0.044715 x³).
inline F gelu_tanh(F x) {
  const F cubic = fma(mul(set1(0.044715f), mul(x, x)), x, x);
  return times_logistic(x, mul(set1(1.5957691216f), cubic));
}

}  // namespace
}  // namespace treadle::TREADLE_VARIANT

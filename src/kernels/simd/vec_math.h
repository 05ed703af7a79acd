// kernels/simd/vec_math.h: the transcendental functions of the model over Vec, one text for every instruction set.
//
//   exp       within 2 ulp over the whole range, subnormal results included; 0 below, infinity above, NaN kept
//   sigmoid   within 4 ulp, relative, on both sides (e^x / (1 + e^x) for x < 0); exact limits 0 and 1
//   tanh      within 4 ulp, relative, near 0 too (through expm1); exact limits ±1; tanh(−0) = −0
//   softplus  log(1 + e^x) = max(x, 0) + log1p(e^−|x|), within 4 ulp
//   The bounds are asserted by tests/kernels/simd_test.cpp against double precision.
//
//   Method: Cody–Waite reduction x = n·ln 2 + r, |r| ≤ ln2/2, then the Taylor series of e^r to r^7, whose remainder is
//   below 0.1 ulp on that interval.
#pragma once

#include "kernels/simd/vec.h"

namespace tandem::simd {
namespace {

struct ReducedExp {
  Vec n;        // integral
  Vec expm1_r;  // e^r − 1
};

TANDEM_INLINE ReducedExp reduce_exp(Vec x) {
  const Vec n = round_even(x * broadcast(0x1.715476p+0f));  // log2(e)
  // ln 2 in two parts; n times the first (nine bits) is exact.
  Vec r = fma(n, broadcast(-0.693359375f), x);
  r = fma(n, broadcast(2.12194440054690583e-4f), r);
  Vec q = broadcast(1.f / 5040.f);
  q = fma(q, r, broadcast(1.f / 720.f));
  q = fma(q, r, broadcast(1.f / 120.f));
  q = fma(q, r, broadcast(1.f / 24.f));
  q = fma(q, r, broadcast(1.f / 6.f));
  q = fma(q, r, broadcast(0.5f));
  return {n, fma(q * r, r, r)};
}

TANDEM_INLINE Vec exp(Vec x) {
  // e^-104 rounds to 0 and e^89 to infinity; the bound is the first operand so that NaN passes.
  const ReducedExp e = reduce_exp(min(broadcast(89.f), max(broadcast(-104.f), x)));
  return scale_pow2(e.expm1_r + broadcast(1.f), e.n);
}

// e^x − 1 for 0 ≤ x ≤ 40.
TANDEM_INLINE Vec expm1_positive(Vec x) {
  const ReducedExp e = reduce_exp(x);
  const Vec power = scale_pow2(broadcast(1.f), e.n);
  return fma(power, e.expm1_r, power - broadcast(1.f));
}

TANDEM_INLINE Vec sigmoid(Vec x) {
  const Vec one = broadcast(1.f);
  const Vec e = exp(zero() - abs(x));
  return select(less(x, zero()), e, one) / (one + e);
}

TANDEM_INLINE Vec tanh(Vec x) {
  const Vec magnitude = min(broadcast(10.f), abs(x));  // tanh(10) rounds to 1
  const Vec e = expm1_positive(magnitude + magnitude);
  return copysign(e / (e + broadcast(2.f)), x);
}

// log(1 + u) for 0 ≤ u ≤ 1: 2·atanh(u / (2 + u)), whose series converges with ratio 1/9.
TANDEM_INLINE Vec log1p_unit(Vec u) {
  const Vec s = u / (u + broadcast(2.f));
  const Vec z = s * s;
  Vec p = broadcast(1.f / 15.f);
  p = fma(p, z, broadcast(1.f / 13.f));
  p = fma(p, z, broadcast(1.f / 11.f));
  p = fma(p, z, broadcast(1.f / 9.f));
  p = fma(p, z, broadcast(1.f / 7.f));
  p = fma(p, z, broadcast(0.2f));
  p = fma(p, z, broadcast(1.f / 3.f));
  const Vec twice = s + s;
  return fma(twice * z, p, twice);
}

TANDEM_INLINE Vec softplus(Vec x) { return max(zero(), x) + log1p_unit(exp(zero() - abs(x))); }

}  // namespace
}  // namespace tandem::simd

// kernels/simd/vec_portable.h: Vec over the compilers' four-lane vector types, which every CPU has (SSE2 on x86-64,
// NEON on Arm); the contract is in kernels/simd/vec.h.
#pragma once

#include <cstdint>

#include "kernels/simd/e8m0.h"
#include "kernels/simd/inline.h"

namespace tandem::simd {
namespace {

typedef float F32x4 __attribute__((vector_size(16)));
typedef int32_t I32x4 __attribute__((vector_size(16)));
typedef uint32_t U32x4 __attribute__((vector_size(16)));

struct Vec {
  static constexpr int kLanes = 4;
  F32x4 v;
};
struct Mask {
  I32x4 m;  // a lane is all ones or all zeros
};

TANDEM_INLINE U32x4 bits_of(F32x4 x) { return reinterpret_cast<U32x4>(x); }
TANDEM_INLINE F32x4 from_bits(U32x4 x) { return reinterpret_cast<F32x4>(x); }
TANDEM_INLINE U32x4 splat(uint32_t x) { return U32x4{x, x, x, x}; }

TANDEM_INLINE Vec zero() { return {F32x4{0.f, 0.f, 0.f, 0.f}}; }
TANDEM_INLINE Vec broadcast(float x) { return {F32x4{x, x, x, x}}; }
TANDEM_INLINE Vec load(const float* p) {
  Vec x;
  __builtin_memcpy(&x.v, p, sizeof x.v);
  return x;
}
TANDEM_INLINE void store(float* p, Vec x) { __builtin_memcpy(p, &x.v, sizeof x.v); }
TANDEM_INLINE Vec load_partial(const float* p, int64_t n) {
  float lanes[4] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
TANDEM_INLINE void store_partial(float* p, Vec x, int64_t n) {
  float lanes[4];
  store(lanes, x);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

TANDEM_INLINE U32x4 load_halves(const void* p) {
  uint16_t h[4];
  __builtin_memcpy(h, p, sizeof h);
  return U32x4{h[0], h[1], h[2], h[3]};
}
TANDEM_INLINE U32x4 load_halves_partial(const void* p, int64_t n) {
  uint16_t h[4] = {};
  __builtin_memcpy(h, p, static_cast<uint64_t>(2 * n));
  return load_halves(h);
}
// The half's exponent and mantissa moved into place are the value times 2^-112 (subnormals too); only infinity and NaN
// need their exponent filled up.
TANDEM_INLINE Vec widen_f16(U32x4 halves) {
  const U32x4 magnitude = (halves & splat(0x7fff)) << 13;
  const U32x4 scaled = bits_of(from_bits(magnitude) * broadcast(0x1p112f).v);
  const U32x4 special = reinterpret_cast<U32x4>((halves & splat(0x7c00)) == splat(0x7c00));
  const U32x4 finite_or_filled = (scaled & ~special) | ((magnitude | splat(0x7f800000)) & special);
  return {from_bits(finite_or_filled | ((halves & splat(0x8000)) << 16))};
}
TANDEM_INLINE Vec load_bf16(const void* p) { return {from_bits(load_halves(p) << 16)}; }
TANDEM_INLINE Vec load_bf16_partial(const void* p, int64_t n) { return {from_bits(load_halves_partial(p, n) << 16)}; }
TANDEM_INLINE Vec load_i8_partial(const void* p, int64_t n) {
  Vec x = zero();
  for (int64_t i = 0; i < n; ++i) x.v[i] = static_cast<float>(static_cast<const int8_t*>(p)[i]);
  return x;
}
TANDEM_INLINE Vec load_i8(const void* p) { return load_i8_partial(p, Vec::kLanes); }
TANDEM_INLINE Vec load_f16(const void* p) { return widen_f16(load_halves(p)); }
TANDEM_INLINE Vec load_f16_partial(const void* p, int64_t n) { return widen_f16(load_halves_partial(p, n)); }

TANDEM_INLINE Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
TANDEM_INLINE Vec operator-(Vec a, Vec b) { return {a.v - b.v}; }
TANDEM_INLINE Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
TANDEM_INLINE Vec operator/(Vec a, Vec b) { return {a.v / b.v}; }
TANDEM_INLINE Vec fma(Vec a, Vec b, Vec c) { return {a.v * b.v + c.v}; }
TANDEM_INLINE Vec abs(Vec x) { return {from_bits(bits_of(x.v) & splat(0x7fffffff))}; }
TANDEM_INLINE Vec copysign(Vec magnitude, Vec sign) {
  return {from_bits((bits_of(magnitude.v) & splat(0x7fffffff)) | (bits_of(sign.v) & splat(0x80000000)))};
}

TANDEM_INLINE Mask less(Vec a, Vec b) { return {a.v < b.v}; }
TANDEM_INLINE Mask is_nan(Vec x) { return {x.v != x.v}; }
TANDEM_INLINE Vec select(Mask mask, Vec if_true, Vec if_false) {
  const U32x4 m = reinterpret_cast<U32x4>(mask.m);
  return {from_bits((bits_of(if_true.v) & m) | (bits_of(if_false.v) & ~m))};
}
TANDEM_INLINE Vec min(Vec a, Vec b) { return select(less(a, b), a, b); }
TANDEM_INLINE Vec max(Vec a, Vec b) { return select(less(b, a), a, b); }

TANDEM_INLINE float sum(Vec x) { return (x.v[0] + x.v[2]) + (x.v[1] + x.v[3]); }
// Four sums at once, each bitwise equal to sum().
TANDEM_INLINE void sum4(const Vec (&x)[4], float* out) {
  for (int i = 0; i < 4; ++i) out[i] = sum(x[i]);
}
// Eight and sixteen sums.
TANDEM_INLINE void sum8(const Vec* x, float* out) {
  for (int i = 0; i < 8; i += 4) sum4({x[i], x[i + 1], x[i + 2], x[i + 3]}, out + i);
}
TANDEM_INLINE void sum16(const Vec* x, float* out) {
  for (int i = 0; i < 16; i += 4) sum4({x[i], x[i + 1], x[i + 2], x[i + 3]}, out + i);
}
TANDEM_INLINE float reduce_max(Vec x) {
  const float a = x.v[0] > x.v[2] ? x.v[0] : x.v[2];
  const float b = x.v[1] > x.v[3] ? x.v[1] : x.v[3];
  return a > b ? a : b;
}

// Adding 2^23 to a smaller magnitude leaves no fraction bits, so the FPU rounds to an integer, ties to even; larger
// magnitudes are integers.
TANDEM_INLINE Vec round_even(Vec x) {
  const Vec magic = broadcast(0x1p23f);
  const Vec magnitude = abs(x);
  return select(less(magnitude, magic), copysign((magnitude + magic) - magic, x), x);
}
TANDEM_INLINE Vec pow2(I32x4 n) { return {from_bits(reinterpret_cast<U32x4>(n + 127) << 23)}; }
// Two steps, because 2^n itself need not be a float.
TANDEM_INLINE Vec scale_pow2(Vec x, Vec n) {
  const Vec magic = broadcast(0x1.8p23f);
  const I32x4 whole = reinterpret_cast<I32x4>(bits_of((n + magic).v) - bits_of(magic.v));
  const I32x4 half = whole >> 1;
  return (x * pow2(half)) * pow2(whole - half);
}

TANDEM_INLINE Vec exponent_part(Vec x) { return {from_bits(bits_of(x.v) & splat(0x7f800000))}; }

TANDEM_INLINE Vec round_to_bf16(Vec x) {
  const U32x4 bits = bits_of(x.v);
  const U32x4 rounded = bits + splat(0x7fff) + ((bits >> 16) & splat(1));
  const U32x4 quiet = bits | splat(0x400000);
  return {from_bits(bits_of(select(is_nan(x), {from_bits(quiet)}, {from_bits(rounded)}).v) & splat(0xffff0000))};
}

// E2M1 has an f32's fields at another place and bias, so a shift and an add convert it; its subnormals 0 and 0.5 come
// out as 0.5 and 0.75, one multiplication short of right. (Going through f32 subnormals instead would trap to
// microcode.)
TANDEM_INLINE Vec decode_e2m1(U32x4 codes, Vec scale) {
  const U32x4 magnitude = codes & splat(7);
  const Vec normal{from_bits((magnitude << 22) + splat(126u << 23))};
  const Vec half = broadcast(0.5f);
  const Vec subnormal = (normal - half) + (normal - half);
  const Vec value = select(Mask{reinterpret_cast<I32x4>(magnitude < splat(2))}, subnormal, normal);
  return Vec{from_bits(bits_of(value.v) | ((codes & splat(8)) << 28))} * scale;
}
TANDEM_INLINE void decode_mxfp4_group(const uint8_t* packed, uint8_t scale, Vec (&out)[8]) {
  const Vec factor = broadcast(e8m0_scale(scale));
  for (int i = 0; i < 4; ++i) {
    const U32x4 bytes{packed[4 * i], packed[4 * i + 1], packed[4 * i + 2], packed[4 * i + 3]};
    out[i] = decode_e2m1(bytes, factor);
    out[4 + i] = decode_e2m1(bytes >> 4, factor);
  }
}

}  // namespace
}  // namespace tandem::simd

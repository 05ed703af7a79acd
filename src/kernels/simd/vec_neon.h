// kernels/simd/vec_neon.h: Vec over the 128-bit registers of AArch64; the contract is in kernels/simd/vec.h.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "kernels/simd/e8m0.h"
#include "kernels/simd/inline.h"
#include "kernels/simd/mxfp4_table.h"

namespace tandem::simd {
namespace {

struct Vec {
  static constexpr int kLanes = 4;
  float32x4_t v;
};
struct Mask {
  uint32x4_t m;  // a lane is all ones or all zeros
};

TANDEM_INLINE Vec zero() { return {vdupq_n_f32(0.f)}; }
TANDEM_INLINE Vec broadcast(float x) { return {vdupq_n_f32(x)}; }
TANDEM_INLINE Vec load(const float* p) { return {vld1q_f32(p)}; }
TANDEM_INLINE void store(float* p, Vec x) { vst1q_f32(p, x.v); }
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

TANDEM_INLINE uint16x4_t load_halves(const void* p) {
  uint16x4_t halves;
  __builtin_memcpy(&halves, p, sizeof halves);  // at any address
  return halves;
}
TANDEM_INLINE uint16x4_t load_halves_partial(const void* p, int64_t n) {
  uint16_t halves[4] = {};
  __builtin_memcpy(halves, p, static_cast<uint64_t>(2 * n));
  return load_halves(halves);
}
TANDEM_INLINE Vec widen_bf16(uint16x4_t halves) { return {vreinterpretq_f32_u32(vshll_n_u16(halves, 16))}; }
TANDEM_INLINE Vec load_bf16(const void* p) { return widen_bf16(load_halves(p)); }
TANDEM_INLINE Vec load_bf16_partial(const void* p, int64_t n) { return widen_bf16(load_halves_partial(p, n)); }
TANDEM_INLINE Vec widen_f16(uint16x4_t halves) { return {vcvt_f32_f16(vreinterpret_f16_u16(halves))}; }
TANDEM_INLINE Vec load_f16(const void* p) { return widen_f16(load_halves(p)); }
TANDEM_INLINE Vec load_f16_partial(const void* p, int64_t n) { return widen_f16(load_halves_partial(p, n)); }
TANDEM_INLINE Vec load_i8_partial(const void* p, int64_t n) {
  uint64_t codes = 0;
  __builtin_memcpy(&codes, p, static_cast<uint64_t>(n));
  const int16x8_t words = vmovl_s8(vcreate_s8(codes));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(words)))};
}
TANDEM_INLINE Vec load_i8(const void* p) { return load_i8_partial(p, Vec::kLanes); }

TANDEM_INLINE Vec operator+(Vec a, Vec b) { return {vaddq_f32(a.v, b.v)}; }
TANDEM_INLINE Vec operator-(Vec a, Vec b) { return {vsubq_f32(a.v, b.v)}; }
TANDEM_INLINE Vec operator*(Vec a, Vec b) { return {vmulq_f32(a.v, b.v)}; }
TANDEM_INLINE Vec operator/(Vec a, Vec b) { return {vdivq_f32(a.v, b.v)}; }
TANDEM_INLINE Vec fma(Vec a, Vec b, Vec c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
TANDEM_INLINE Vec abs(Vec x) { return {vabsq_f32(x.v)}; }
TANDEM_INLINE Vec copysign(Vec magnitude, Vec sign) {
  return {vbslq_f32(vdupq_n_u32(0x80000000u), sign.v, magnitude.v)};
}

TANDEM_INLINE Mask less(Vec a, Vec b) { return {vcltq_f32(a.v, b.v)}; }
TANDEM_INLINE Mask is_nan(Vec x) { return {vmvnq_u32(vceqq_f32(x.v, x.v))}; }
TANDEM_INLINE Vec select(Mask mask, Vec if_true, Vec if_false) { return {vbslq_f32(mask.m, if_true.v, if_false.v)}; }
// FMIN and FMAX give NaN for one: the contract wants the second operand.
TANDEM_INLINE Vec min(Vec a, Vec b) { return select(less(a, b), a, b); }
TANDEM_INLINE Vec max(Vec a, Vec b) { return select(less(b, a), a, b); }

TANDEM_INLINE float sum(Vec x) {
  const float32x2_t half = vadd_f32(vget_low_f32(x.v), vget_high_f32(x.v));
  return vget_lane_f32(half, 0) + vget_lane_f32(half, 1);
}
// Four sums at once, each bitwise equal to sum().
TANDEM_INLINE void sum4(const Vec (&x)[4], float* out) {
  const float32x2_t a = vadd_f32(vget_low_f32(x[0].v), vget_high_f32(x[0].v));
  const float32x2_t b = vadd_f32(vget_low_f32(x[1].v), vget_high_f32(x[1].v));
  const float32x2_t c = vadd_f32(vget_low_f32(x[2].v), vget_high_f32(x[2].v));
  const float32x2_t d = vadd_f32(vget_low_f32(x[3].v), vget_high_f32(x[3].v));
  vst1q_f32(out, vcombine_f32(vpadd_f32(a, b), vpadd_f32(c, d)));
}
// Eight and sixteen sums.
TANDEM_INLINE void sum8(const Vec* x, float* out) {
  for (int i = 0; i < 8; i += 4) sum4({x[i], x[i + 1], x[i + 2], x[i + 3]}, out + i);
}
TANDEM_INLINE void sum16(const Vec* x, float* out) {
  for (int i = 0; i < 16; i += 4) sum4({x[i], x[i + 1], x[i + 2], x[i + 3]}, out + i);
}
TANDEM_INLINE float reduce_max(Vec x) {
  const float a = vgetq_lane_f32(x.v, 0) > vgetq_lane_f32(x.v, 2) ? vgetq_lane_f32(x.v, 0) : vgetq_lane_f32(x.v, 2);
  const float b = vgetq_lane_f32(x.v, 1) > vgetq_lane_f32(x.v, 3) ? vgetq_lane_f32(x.v, 1) : vgetq_lane_f32(x.v, 3);
  return a > b ? a : b;
}

TANDEM_INLINE Vec round_even(Vec x) { return {vrndnq_f32(x.v)}; }
TANDEM_INLINE Vec pow2(int32x4_t n) { return {vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23))}; }
// Two steps, because 2^n itself need not be a float.
TANDEM_INLINE Vec scale_pow2(Vec x, Vec n) {
  const int32x4_t whole = vcvtnq_s32_f32(n.v);
  const int32x4_t half = vshrq_n_s32(whole, 1);
  return (x * pow2(half)) * pow2(vsubq_s32(whole, half));
}

TANDEM_INLINE Vec exponent_part(Vec x) {
  return {vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x.v), vdupq_n_u32(0x7f800000u)))};
}

TANDEM_INLINE Vec round_to_bf16(Vec x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x.v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  const uint32x4_t chosen = vbslq_u32(is_nan(x).m, quiet, rounded);
  return {vreinterpretq_f32_u32(vandq_u32(chosen, vdupq_n_u32(0xffff0000u)))};
}

// The sixteen values of a scale are one table of 64 bytes: byte b of value c is at 4c + b.
TANDEM_INLINE Vec decode_e2m1(uint32x4_t codes, uint8x16x4_t table) {
  const uint32x4_t places = vmlaq_u32(vdupq_n_u32(0x03020100u), codes, vdupq_n_u32(0x04040404u));
  return {vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(places)))};
}
TANDEM_INLINE void decode_mxfp4_group(const uint8_t* packed, uint8_t scale, Vec (&out)[8]) {
  const float* row = kScaledE2M1.row[scale];
  const uint8x16x4_t table = {{vreinterpretq_u8_f32(vld1q_f32(row)), vreinterpretq_u8_f32(vld1q_f32(row + 4)),
                               vreinterpretq_u8_f32(vld1q_f32(row + 8)), vreinterpretq_u8_f32(vld1q_f32(row + 12))}};
  const uint8x16_t bytes = vld1q_u8(packed);
  const uint8x16_t nibbles[2] = {vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8(bytes, 4)};
  for (int half = 0; half < 2; ++half) {
    const uint16x8_t low = vmovl_u8(vget_low_u8(nibbles[half]));
    const uint16x8_t high = vmovl_u8(vget_high_u8(nibbles[half]));
    out[4 * half] = decode_e2m1(vmovl_u16(vget_low_u16(low)), table);
    out[4 * half + 1] = decode_e2m1(vmovl_u16(vget_high_u16(low)), table);
    out[4 * half + 2] = decode_e2m1(vmovl_u16(vget_low_u16(high)), table);
    out[4 * half + 3] = decode_e2m1(vmovl_u16(vget_high_u16(high)), table);
  }
}

}  // namespace
}  // namespace tandem::simd

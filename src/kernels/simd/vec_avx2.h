// kernels/simd/vec_avx2.h: Vec over AVX2 + FMA + F16C; the contract is in kernels/simd/vec.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/simd/e8m0.h"
#include "kernels/simd/inline.h"
#include "kernels/simd/mxfp4_table.h"

namespace tandem::simd {
namespace {

struct Vec {
  static constexpr int kLanes = 8;
  __m256 v;
};
struct Mask {
  __m256 m;
};

TANDEM_INLINE __m256i first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

TANDEM_INLINE Vec zero() { return {_mm256_setzero_ps()}; }
TANDEM_INLINE Vec broadcast(float x) { return {_mm256_set1_ps(x)}; }
TANDEM_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
TANDEM_INLINE void store(float* p, Vec x) { _mm256_storeu_ps(p, x.v); }
TANDEM_INLINE Vec load_partial(const float* p, int64_t n) { return {_mm256_maskload_ps(p, first_lanes(n))}; }
TANDEM_INLINE void store_partial(float* p, Vec x, int64_t n) { _mm256_maskstore_ps(p, first_lanes(n), x.v); }

// AVX2 has no masked 16-bit load: the few halves of a tail go through a register-sized buffer.
TANDEM_INLINE __m128i load_halves_partial(const void* p, int64_t n) {
  uint16_t halves[8] = {};
  __builtin_memcpy(halves, p, static_cast<uint64_t>(2 * n));  // at any address
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(halves));
}
TANDEM_INLINE Vec widen_bf16(__m128i halves) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16))};
}
TANDEM_INLINE Vec load_bf16(const void* p) { return widen_bf16(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
TANDEM_INLINE Vec load_bf16_partial(const void* p, int64_t n) { return widen_bf16(load_halves_partial(p, n)); }
TANDEM_INLINE Vec load_i8(const void* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))))};
}
TANDEM_INLINE Vec load_i8_partial(const void* p, int64_t n) {
  uint64_t codes = 0;
  __builtin_memcpy(&codes, p, static_cast<size_t>(n));
  return load_i8(&codes);
}
TANDEM_INLINE Vec load_f16(const void* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)))}; }
TANDEM_INLINE Vec load_f16_partial(const void* p, int64_t n) { return {_mm256_cvtph_ps(load_halves_partial(p, n))}; }

TANDEM_INLINE Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
TANDEM_INLINE Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
TANDEM_INLINE Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
TANDEM_INLINE Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
TANDEM_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
TANDEM_INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
TANDEM_INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
TANDEM_INLINE Vec abs(Vec x) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.f), x.v)}; }
TANDEM_INLINE Vec copysign(Vec magnitude, Vec sign) {
  const __m256 bit = _mm256_set1_ps(-0.f);
  return {_mm256_or_ps(_mm256_andnot_ps(bit, magnitude.v), _mm256_and_ps(bit, sign.v))};
}

TANDEM_INLINE Mask less(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
TANDEM_INLINE Mask is_nan(Vec x) { return {_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q)}; }
TANDEM_INLINE Vec select(Mask mask, Vec if_true, Vec if_false) {
  return {_mm256_blendv_ps(if_false.v, if_true.v, mask.m)};
}

TANDEM_INLINE float sum(Vec x) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(x.v), _mm256_extractf128_ps(x.v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
TANDEM_INLINE float reduce_max(Vec x) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(x.v), _mm256_extractf128_ps(x.v, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

TANDEM_INLINE Vec round_even(Vec x) { return {_mm256_round_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
TANDEM_INLINE __m256 pow2(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
// Two steps, because 2^n itself need not be a float.
TANDEM_INLINE Vec scale_pow2(Vec x, Vec n) {
  const __m256i whole = _mm256_cvtps_epi32(n.v);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  return {_mm256_mul_ps(_mm256_mul_ps(x.v, pow2(half)), pow2(_mm256_sub_epi32(whole, half)))};
}

TANDEM_INLINE Vec round_to_bf16(Vec x) {
  const __m256i bits = _mm256_castps_si256(x.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 chosen = select(is_nan(x), {_mm256_castsi256_ps(quiet)}, {_mm256_castsi256_ps(rounded)}).v;
  return {_mm256_and_ps(chosen, _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
}

// Four sums at once, each bitwise equal to sum().
TANDEM_INLINE __m128 fold_to_half(__m256 x) {
  return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
}
TANDEM_INLINE void sum4(const Vec (&x)[4], float* out) {
  const __m128 a = fold_to_half(x[0].v);
  const __m128 b = fold_to_half(x[1].v);
  const __m128 c = fold_to_half(x[2].v);
  const __m128 d = fold_to_half(x[3].v);
  const __m128 ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
  const __m128 cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
  _mm_storeu_ps(out, _mm_add_ps(_mm_shuffle_ps(ab, cd, _MM_SHUFFLE(2, 0, 2, 0)),
                                _mm_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 1, 3, 1))));
}
// Eight and sixteen sums.
TANDEM_INLINE void sum8(const Vec* x, float* out) {
  for (int i = 0; i < 8; i += 4) sum4({x[i], x[i + 1], x[i + 2], x[i + 3]}, out + i);
}
TANDEM_INLINE void sum16(const Vec* x, float* out) {
  for (int i = 0; i < 16; i += 4) sum4({x[i], x[i + 1], x[i + 2], x[i + 3]}, out + i);
}

TANDEM_INLINE Vec exponent_part(Vec x) { return {_mm256_and_ps(x.v, _mm256_set1_ps(__builtin_inff()))}; }

// vpermps has eight entries: it looks the magnitude up by the low three bits of an index, and bit 3 becomes the sign.
TANDEM_INLINE Vec decode_e2m1(__m256i codes, __m256 magnitudes) {
  const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(codes, 28), _mm256_set1_epi32(static_cast<int>(0x80000000u)));
  return {_mm256_xor_ps(_mm256_permutevar8x32_ps(magnitudes, codes), _mm256_castsi256_ps(sign))};
}
TANDEM_INLINE void decode_mxfp4_group(const uint8_t* packed, uint8_t scale, Vec (&out)[4]) {
  const __m256 magnitudes = _mm256_load_ps(kScaledE2M1.row[scale]);
  for (int half = 0; half < 2; ++half) {
    const auto* source = reinterpret_cast<const __m128i*>(packed + 8 * half);
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(source));
    out[half] = decode_e2m1(bytes, magnitudes);
    out[2 + half] = decode_e2m1(_mm256_srli_epi32(bytes, 4), magnitudes);
  }
}

}  // namespace
}  // namespace tandem::simd

// kernels/simd/vec_avx512.h: Vec over AVX-512 F/BW/DQ/VL; the contract is in kernels/simd/vec.h.
#pragma once

// GCC 12 reports the deliberately undefined source registers of its own intrinsics (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <cstdint>

#include "kernels/simd/e8m0.h"
#include "kernels/simd/inline.h"
#include "kernels/simd/mxfp4_table.h"

namespace tandem::simd {
namespace {

struct Vec {
  static constexpr int kLanes = 16;
  __m512 v;
};
struct Mask {
  __mmask16 m;
};

TANDEM_INLINE __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((uint32_t{1} << n) - 1u); }

TANDEM_INLINE Vec zero() { return {_mm512_setzero_ps()}; }
TANDEM_INLINE Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }
TANDEM_INLINE Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
TANDEM_INLINE void store(float* p, Vec x) { _mm512_storeu_ps(p, x.v); }
TANDEM_INLINE Vec load_partial(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
TANDEM_INLINE void store_partial(float* p, Vec x, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), x.v); }

TANDEM_INLINE Vec widen_bf16(__m256i halves) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}
TANDEM_INLINE Vec load_bf16(const void* p) { return widen_bf16(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
TANDEM_INLINE Vec load_bf16_partial(const void* p, int64_t n) {
  return widen_bf16(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
TANDEM_INLINE Vec load_i8(const void* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))))};
}
TANDEM_INLINE Vec load_i8_partial(const void* p, int64_t n) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first_lanes(n), p)))};
}
TANDEM_INLINE Vec load_f16(const void* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
TANDEM_INLINE Vec load_f16_partial(const void* p, int64_t n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p))};
}

TANDEM_INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
TANDEM_INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
TANDEM_INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
TANDEM_INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
TANDEM_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TANDEM_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
TANDEM_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
TANDEM_INLINE Vec abs(Vec x) { return {_mm512_abs_ps(x.v)}; }
TANDEM_INLINE Vec copysign(Vec magnitude, Vec sign) {
  const __m512 bit = _mm512_set1_ps(-0.f);
  return {_mm512_or_ps(_mm512_andnot_ps(bit, magnitude.v), _mm512_and_ps(bit, sign.v))};
}

TANDEM_INLINE Mask less(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
TANDEM_INLINE Mask is_nan(Vec x) { return {_mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q)}; }
TANDEM_INLINE Vec select(Mask mask, Vec if_true, Vec if_false) {
  return {_mm512_mask_blend_ps(mask.m, if_false.v, if_true.v)};
}

TANDEM_INLINE float sum(Vec x) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}
TANDEM_INLINE float reduce_max(Vec x) {
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
}

TANDEM_INLINE Vec round_even(Vec x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
TANDEM_INLINE Vec scale_pow2(Vec x, Vec n) { return {_mm512_scalef_ps(x.v, n.v)}; }

TANDEM_INLINE Vec round_to_bf16(Vec x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __m512i chosen = _mm512_mask_blend_epi32(is_nan(x).m, rounded, quiet);
  return {_mm512_castsi512_ps(_mm512_and_si512(chosen, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}

// Four sums at once, each bitwise equal to sum().
TANDEM_INLINE __m128 fold_to_quarter(__m512 x) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}
TANDEM_INLINE void sum4(const Vec (&x)[4], float* out) {
  const __m128 a = fold_to_quarter(x[0].v);
  const __m128 b = fold_to_quarter(x[1].v);
  const __m128 c = fold_to_quarter(x[2].v);
  const __m128 d = fold_to_quarter(x[3].v);
  const __m128 ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
  const __m128 cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
  _mm_storeu_ps(out, _mm_add_ps(_mm_shuffle_ps(ab, cd, _MM_SHUFFLE(2, 0, 2, 0)),
                                _mm_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 1, 3, 1))));
}

// The same fold for more vectors at once: every step halves their number, so a sum costs three instructions, not six.
// The 128-bit quarters of four vectors a, b, c, d folded to [a b c d].
TANDEM_INLINE __m512 fold_four(Vec a, Vec b, Vec c, Vec d) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a.v, b.v, 0x44), _mm512_shuffle_f32x4(a.v, b.v, 0xee));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c.v, d.v, 0x44), _mm512_shuffle_f32x4(c.v, d.v, 0xee));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}
// Pairs of elements of each quarter of p and q: [p02 p13 q02 q13].
TANDEM_INLINE __m512 fold_pairs(__m512 p, __m512 q) {
  const __m512d a = _mm512_castps_pd(p);
  const __m512d b = _mm512_castps_pd(q);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
}
TANDEM_INLINE __m512 fold_elements(__m512 p, __m512 q) {
  return _mm512_add_ps(_mm512_shuffle_ps(p, q, 0x88), _mm512_shuffle_ps(p, q, 0xdd));
}
TANDEM_INLINE void sum16(const Vec* x, float* out) {
  const __m512 p = fold_pairs(fold_four(x[0], x[4], x[8], x[12]), fold_four(x[1], x[5], x[9], x[13]));
  const __m512 q = fold_pairs(fold_four(x[2], x[6], x[10], x[14]), fold_four(x[3], x[7], x[11], x[15]));
  _mm512_storeu_ps(out, fold_elements(p, q));
}
TANDEM_INLINE void sum8(const Vec* x, float* out) {
  const __m512 p = fold_pairs(fold_four(x[0], x[2], x[4], x[6]), fold_four(x[1], x[3], x[5], x[7]));
  const __m512d pairs = _mm512_castps_pd(fold_elements(p, p));  // each quarter: two sums, twice
  const __m512i first = _mm512_setr_epi64(0, 2, 4, 6, 0, 2, 4, 6);
  _mm256_storeu_pd(reinterpret_cast<double*>(out), _mm512_castpd512_pd256(_mm512_permutexvar_pd(first, pairs)));
}

TANDEM_INLINE Vec exponent_part(Vec x) { return {_mm512_and_ps(x.v, _mm512_set1_ps(__builtin_inff()))}; }

// The sixteen E2M1 values fill one register, so a permute looks sixteen codes up at once (it reads only the low four
// bits of an index); the table's row of the scale holds them scaled.
TANDEM_INLINE void decode_mxfp4_group(const uint8_t* packed, uint8_t scale, Vec (&out)[2]) {
  const __m512 table = _mm512_load_ps(kScaledE2M1.row[scale]);
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed)));
  out[0].v = _mm512_permutexvar_ps(bytes, table);
  out[1].v = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), table);
}

}  // namespace
}  // namespace tandem::simd

// kernels/amx/mxfp4_digits.inl: products of MXFP4 weights and the few tokens of a decode in whole numbers. For files
// built as `_amx` only.
//
//   A token is read as whole numbers under one power of two, x = s (d₀ + 2⁸ d₁ + 2¹⁶ d₂ + 2²⁴ d₃) with digits in
//   [-128, 127]: |error| <= 2⁻³¹ max |x|, nothing for a value above 2⁻⁷ of the largest. Twice an E2M1 code is a whole
//   number too, so Σ code · digit over the 32 columns under one scale is exact, and
//     y = s/2 Σ_p 2^(8p) Σ_groups scale · (Σ_k 2·code · d_p)
//   rounds once a group where a sum of products rounds 32 times.
//
//   One step is 128 columns, four groups, 64 bytes of a row: the even columns and the odd columns of 16 rows are a left
//   factor each, [16 rows × 64]: two look-ups for 128 weights. In the right factor a token has a column for each group
//   and digit, zero outside the rows of its group, so [16 rows × (4 groups × 4 digits)] keeps groups apart. A token is
//   a product of its own: its bits do not depend on the others.
#pragma once

#include <cstdint>

#include "kernels/amx/tiles.inl"
#include "kernels/simd/vec_avx512.h"
#include "tensor/weight_view.h"

namespace tandem {
namespace {

constexpr int64_t kStepColumns = 128;
constexpr int64_t kStepGroups = 4;
constexpr int64_t kStepBytes = 2 * kTileBytes;  // both right factors of a token
TANDEM_INLINE int64_t steps_of(int64_t cols) { return tiles_of(cols, kStepColumns); }

// The digits of one token, steps_of(cols) · kStepBytes of them, and s / 2.
struct DigitToken {
  const char* digits;
  float half_scale;
};

// ---- packing ------------------------------------------------------------------------------------------------------

// 2^e for |x| of at most `largest`, such that |x| / 2^e <= 2³⁰; NaN when `largest` is not finite.
TANDEM_INLINE float digit_scale(float largest) {
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &largest, 4);
  const auto exponent = static_cast<int>(bits >> 23 & 0xff);
  if (exponent == 0xff) return __builtin_nanf("");
  const int scale = exponent - 29;  // largest < 2^(exponent − 126)
  bits = scale < 1 ? 1u << 23 : static_cast<uint32_t>(scale) << 23;
  float result = 0;
  __builtin_memcpy(&result, &bits, 4);
  return result;
}

TANDEM_INLINE float largest_of(const float* x, int64_t cols) {
  __m512 largest = _mm512_setzero_ps();
  __mmask16 is_nan = 0;
  for (int64_t k = 0; k < cols; k += 16) {
    const __m512 value = _mm512_abs_ps(_mm512_maskz_loadu_ps(simd::first_lanes(least(cols - k, 16)), x + k));
    is_nan = static_cast<__mmask16>(is_nan | _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q));
    largest = _mm512_max_ps(largest, value);
  }
  return is_nan != 0 ? __builtin_nanf("") : simd::reduce_max(simd::Vec{largest});
}

// The digits of 16 columns, those of four columns together: [quad][digit][4].
TANDEM_INLINE __m512i digits_of(__m512 x, __m512 inverse) {
  const __m512i shift = _mm512_set1_epi32(0x00808080);  // carries, so that the digits are signed
  const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
  const __m512i digits = _mm512_xor_si512(_mm512_add_epi32(whole, shift), shift);
  const __m128i by_digit = _mm_set_epi8(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  return _mm512_shuffle_epi8(digits, _mm512_broadcast_i32x4(by_digit));
}

TANDEM_INLINE void store_quads(__m512i digits, char* tile, int64_t group) {
  char* at = tile + group * kStepGroups * 64 + group * 16;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm512_castsi512_si128(digits));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(at + 64), _mm512_extracti32x4_epi32(digits, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(at + 128), _mm512_extracti32x4_epi32(digits, 2));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(at + 192), _mm512_extracti32x4_epi32(digits, 3));
}

// One token of a multiple of 32 columns into `packed`, which holds steps_of(cols) · kStepBytes.
TANDEM_INLINE DigitToken pack_digits(const float* x, int64_t cols, char* packed) {
  const float scale = digit_scale(largest_of(x, cols));
  const bool is_finite = scale == scale;
  const __m512 inverse = _mm512_set1_ps(is_finite ? 1.f / scale : 0.f);
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  for (int64_t i = 0; i < steps_of(cols) * kStepBytes; i += 64) _mm512_storeu_si512(packed + i, _mm512_setzero_si512());
  for (int64_t k = 0; k < cols && is_finite; k += kTileCols) {
    const __m512 low = _mm512_loadu_ps(x + k);
    const __m512 high = _mm512_loadu_ps(x + k + 16);
    char* step = packed + k / kStepColumns * kStepBytes;
    const int64_t group = k % kStepColumns / kTileCols;
    store_quads(digits_of(_mm512_permutex2var_ps(low, even, high), inverse), step, group);
    store_quads(digits_of(_mm512_permutex2var_ps(low, odd, high), inverse), step + kTileBytes, group);
  }
  return {packed, scale * 0.5f};
}

// ---- weights past the tokens
// ------------------------------------------------------------------------------------------

// Rows [row, row + rows) of an MXFP4 weight, at most 32, and where the rows lie that this thread reads after them (of
// the same width; null: none known).
struct DigitPanel {
  const WeightView* weight;
  int64_t row;
  int64_t rows;
  const char* next;
  const uint8_t* next_scale;
};

// Four scales, or `count` of them.
TANDEM_INLINE int32_t load_scales(const uint8_t* scale, int64_t count) {
  int32_t bytes = 0;
  if (count == kStepGroups) {
    __builtin_memcpy(&bytes, scale, 4);
  } else {
    __builtin_memcpy(&bytes, scale, static_cast<uint64_t>(count));
  }
  return bytes;
}

// A step of 32 rows unpacked: even columns [2 × 16 rows × 64], odd columns likewise, scales [32 rows][4 groups × 4
// digits].
constexpr int64_t kUnpackedBytes = 4 * kTileBytes + 2 * kTileBytes;

// A row that is not there repeats the last one.
TANDEM_INLINE void unpack_step(const DigitPanel& panel, int64_t step, char* unpacked) {
  const WeightView& weight = *panel.weight;
  const int64_t groups = weight.cols / kTileCols;
  const int64_t first_group = step * kStepGroups;
  const int64_t count = least(groups - first_group, kStepGroups);
  const auto codes_mask = static_cast<__mmask64>(count == kStepGroups ? ~uint64_t{0} : (uint64_t{1} << count * 16) - 1);
  // Four times over: the permute reads six bits of an index, and the nibble above shall not matter.
  const __m512i twice = _mm512_broadcast_i32x4(_mm_set_epi8(-12, -8, -6, -4, -3, -2, -1, 0, 12, 8, 6, 4, 3, 2, 1, 0));
  // Byte g of the four scales into the top byte of lanes 4g … 4g + 3.
  const __m512i spread = _mm512_set_epi8(3, -1, -1, -1, 3, -1, -1, -1, 3, -1, -1, -1, 3, -1, -1, -1,  //
                                         2, -1, -1, -1, 2, -1, -1, -1, 2, -1, -1, -1, 2, -1, -1, -1,  //
                                         1, -1, -1, -1, 1, -1, -1, -1, 1, -1, -1, -1, 1, -1, -1, -1,  //
                                         0, -1, -1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 0, -1, -1, -1);
  const auto* data = static_cast<const char*>(weight.data) + step * 64;
  const uint8_t* scale = weight.scale + first_group;
  auto* scales = reinterpret_cast<float*>(unpacked + 4 * kTileBytes);
  for (int64_t r = 0; r < kPanelRows; ++r) {
    const int64_t row = panel.row + least(r, panel.rows - 1);
    const __m512i codes = _mm512_maskz_loadu_epi8(codes_mask, data + row * (weight.cols / 2));
    _mm512_store_si512(unpacked + r * 64, _mm512_permutexvar_epi8(codes, twice));
    _mm512_store_si512(unpacked + 2 * kTileBytes + r * 64, _mm512_permutexvar_epi8(_mm512_srli_epi16(codes, 4), twice));
    const __m512i bytes = _mm512_set1_epi32(load_scales(scale + row * groups, count));
    const __m512i exponents = _mm512_srli_epi32(_mm512_shuffle_epi8(bytes, spread), 1);
    _mm512_store_ps(scales + r * 16, _mm512_castsi512_ps(exponents));
  }
}

// What lies `step` steps into the rows that follow: 2 KiB of their codes, 128 bytes of their scales. Into L1 when what
// is read until then leaves it there.
TANDEM_INLINE void prefetch_step(const DigitPanel& panel, int64_t step) {
  if (panel.next == nullptr) return;
  const char* codes = panel.next + step * kPanelRows * 64;
  if (panel.weight->cols <= 1024) {
    for (int64_t line = 0; line < kPanelRows; ++line) _mm_prefetch(codes + line * 64, _MM_HINT_T0);
  } else {
    for (int64_t line = 0; line < kPanelRows; ++line) _mm_prefetch(codes + line * 64, _MM_HINT_T1);
  }
  const char* scales = reinterpret_cast<const char*>(panel.next_scale) + step * 128;
  _mm_prefetch(scales, _MM_HINT_T0);
  _mm_prefetch(scales + 64, _MM_HINT_T0);
}

// result[row][group · 4 + digit] of an unpacked step and one token. Turns alternate between two pairs of tiles (the
// intrinsics take literals only), and two products in a row share their right factor: the unit changes it at the cost
// of four products.
TANDEM_INLINE void multiply_step(bool is_odd, const char* unpacked, const char* right, int32_t* result) {
  const char* odd_columns = unpacked + 2 * kTileBytes;
  if (is_odd) {
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(6, right, 64);
    _tile_loadd(4, unpacked, 64);
    _tile_dpbssd(2, 4, 6);
    _tile_loadd(5, unpacked + kTileBytes, 64);
    _tile_dpbssd(3, 5, 6);
    _tile_loadd(7, right + kTileBytes, 64);
    _tile_loadd(4, odd_columns, 64);
    _tile_dpbssd(2, 4, 7);
    _tile_loadd(5, odd_columns + kTileBytes, 64);
    _tile_dpbssd(3, 5, 7);
    _tile_stored(2, result, 64);
    _tile_stored(3, result + kResultFloats, 64);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(6, right, 64);
    _tile_loadd(4, unpacked, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(5, unpacked + kTileBytes, 64);
    _tile_dpbssd(1, 5, 6);
    _tile_loadd(7, right + kTileBytes, 64);
    _tile_loadd(4, odd_columns, 64);
    _tile_dpbssd(0, 4, 7);
    _tile_loadd(5, odd_columns + kTileBytes, 64);
    _tile_dpbssd(1, 5, 7);
    _tile_stored(0, result, 64);
    _tile_stored(1, result + kResultFloats, 64);
  }
}

// sums[row] += scales[row] · result[row], a lane for each group of a step and digit.
TANDEM_INLINE void add_step(const int32_t* result, const char* unpacked, float* sums) {
  const auto* scales = reinterpret_cast<const float*>(unpacked + 4 * kTileBytes);
  for (int64_t r = 0; r < kPanelRows * 16; r += 16) {
    const __m512 value = _mm512_cvtepi32_ps(_mm512_load_si512(result + r));
    _mm512_store_ps(sums + r, _mm512_fmadd_ps(value, _mm512_load_ps(scales + r), _mm512_load_ps(sums + r)));
  }
}

// The values of 16 rows: lanes folded in one order.
TANDEM_INLINE __m512 fold_rows(const float* sums, float half_scale) {
  const __m512 weights = _mm512_broadcast_f32x4(_mm_set_ps(0x1p24f, 0x1p16f, 0x1p8f, 1.f));
  simd::Vec rows[kTileRows];
  for (int64_t r = 0; r < kTileRows; ++r) rows[r] = simd::Vec{_mm512_mul_ps(_mm512_load_ps(sums + r * 16), weights)};
  alignas(64) float values[kTileRows];
  simd::sum16(rows, values);
  return _mm512_mul_ps(_mm512_load_ps(values), _mm512_set1_ps(half_scale));
}

// Scratch of a thread for stream_digits with at most `tokens` tokens.
TANDEM_INLINE int64_t digit_scratch_bytes(int64_t tokens) {
  return 2 * kUnpackedBytes + 4 * kTileBytes + tokens * 2 * kTileBytes;
}

// visit(block, t, values): 16 values of rows 16 · block … of the panel for token t. In a TileScope.
template <class Visit>
TANDEM_INLINE void stream_digits(const DigitPanel& panel, const DigitToken* tokens, int64_t count, char* scratch,
                                 const Visit& visit) {
  constexpr int64_t kPanelFloats = 2 * kResultFloats;
  const int64_t steps = steps_of(panel.weight->cols);
  auto* results = reinterpret_cast<int32_t*>(scratch + 2 * kUnpackedBytes);
  auto* sums = reinterpret_cast<float*>(scratch + 2 * kUnpackedBytes + 4 * kTileBytes);
  for (int64_t i = 0; i < count * kPanelFloats; i += 16) _mm512_store_ps(sums + i, _mm512_setzero_ps());
  // A tile load waits for stores that are not yet in the cache, and a load for the tile store: both are one turn ahead.
  unpack_step(panel, 0, scratch);
  const char* last_unpacked = nullptr;
  float* last_sums = nullptr;
  int64_t turn = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const char* unpacked = scratch + (step & 1) * kUnpackedBytes;
    prefetch_step(panel, step);
    for (int64_t t = 0; t < count; ++t, ++turn) {
      multiply_step((turn & 1) != 0, unpacked, tokens[t].digits + step * kStepBytes,
                    results + (turn & 1) * kPanelFloats);
      if (turn > 0) add_step(results + (~turn & 1) * kPanelFloats, last_unpacked, last_sums);
      last_unpacked = unpacked;
      last_sums = sums + t * kPanelFloats;
      if (t == 0 && step + 1 < steps) unpack_step(panel, step + 1, scratch + (~step & 1) * kUnpackedBytes);
    }
  }
  add_step(results + (~turn & 1) * kPanelFloats, last_unpacked, last_sums);
  for (int64_t block = 0; block * kTileRows < panel.rows; ++block) {
    for (int64_t t = 0; t < count; ++t) {
      visit(block, t, fold_rows(sums + t * kPanelFloats + block * kResultFloats, tokens[t].half_scale));
    }
  }
}

}  // namespace
}  // namespace tandem

// kernels/amx/int8_tiles.inl: products of int8 weights on AMX tiles, exact in integers. For files built as `_amx` only.
//
//   An activation row is written in fixed point over its own power of two,
//
//       x ≈ s · X,   X = q₁·2¹⁶ + q₂·2⁸ + q₃,   q in [−128, 127],   s = 2^(e − 22)   for 2^e ~ max |x|,
//
//   which is off by at most s / 2 <= max |x| · 2⁻²³ · (1 + 2⁻⁷), or 2⁻¹²⁷ where that is more, and exact for an x that
//   has no bits below s. Each digit is a plane of signed bytes; a tile multiplies bytes by bytes and adds in 32 bits,
//   so Σ_k code · q is exact as long as cols · 127 · 128 < 2³¹ (kMostInt8Cols) and any order of it is the same number.
//   (Splitting a factor into int8 slices that integer units multiply exactly is Ootomo, Ozaki and Yokota, 2024.)
//
//       y = ((c₁·2¹⁶ + (c₂·2⁸ + c₃)) · scale of the weight's row) · s,   c = Σ_k code · q
//
//   in f32: three conversions, two fma, one product that round; the last is a power of two. A token with a value that
//   is not finite has digits of 0 and an s of NaN, so all its results are NaN and nobody else's.
//
//   Weights are the left factor and lie in memory as tiles want them, [16 outputs × 64 columns] a row apart, columns
//   behind the row's end being 0: they are loaded from where they are. Activations are the right factor, in groups of
//   four columns ("quads"), in one of two forms:
//     narrow   up to 4 tokens, all digits in one tile:   [16 quads × tokens × (q₃ q₂ q₁ 0) × 4 columns]
//     wide     16 tokens a tile, one tile a digit:       [q₃ q₂ q₁][16 quads × 16 tokens × 4 columns]
#pragma once

#include "kernels/amx/tiles.inl"

namespace tandem {
namespace {

constexpr int64_t kInt8Cols = 64;  // columns under one tile
constexpr int64_t kNarrowTokens = 4;
constexpr int64_t kDigits = 3;
constexpr int64_t kMostInt8Cols = int64_t{1} << 17;
static_assert(kMostInt8Cols * 127 * 128 < int64_t{1} << 31);
static_assert(kInt8Cols == kInt8RowAlign);

// ---- activations --------------------------------------------------------------------------------------------------

struct FixedPoint {
  float factor;  // 1 / s, or 0 when a value is not finite
  float s;       // NaN then
};

TANDEM_INLINE float float_of_bits(int32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

TANDEM_INLINE FixedPoint fixed_point(const float* x, int64_t cols) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i largest = _mm512_setzero_si512();
  for (int64_t k = 0; k < cols; k += 16) {
    const auto mask = simd::first_lanes(least(cols - k, 16));
    largest = _mm512_max_epi32(largest, _mm512_and_si512(magnitude, _mm512_maskz_loadu_epi32(mask, x + k)));
  }
  const int32_t bits = _mm512_reduce_max_epi32(largest);
  if (bits >= 0x7f800000) return {0.f, float_of_bits(0x7fc00000)};
  // The largest X of three balanced digits is 0x7f7f7f: above 0x7f7f7f · 2⁻²² of its power of two, x takes the next.
  int32_t exponent = (bits + 0x10101) >> 23;
  if (exponent < 23) exponent = 23;  // 1 / s = 2¹²⁶
  return {float_of_bits((276 - exponent) << 23), float_of_bits((exponent - 22) << 23)};
}

// 16 values as digits: each quad a quarter of the register, (q₃ of four columns, q₂, q₁, 0).
TANDEM_INLINE __m512i split_quads(__m512 x, float factor) {
  // A byte with its sign turned round is a balanced digit.
  const __m512i bias = _mm512_set1_epi32(0x808080);
  const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(factor)));
  const __m512i digits = _mm512_xor_si512(_mm512_add_epi32(whole, bias), bias);
  return _mm512_shuffle_epi8(digits, _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400));
}

TANDEM_INLINE __m512 load_columns(const float* x, int64_t k, int64_t cols) {
  return _mm512_maskz_loadu_ps(simd::first_lanes(least(cols > k ? cols - k : 0, 16)), x + k);
}

TANDEM_INLINE int64_t narrow_bytes(int64_t tokens) { return tokens * 16 * 16; }  // of 64 columns
constexpr int64_t kWideBytes = kDigits * kTileBytes;                             // of 64 columns of 16 tokens

// Columns [k, k + 64) of token t of `tokens`.
TANDEM_INLINE void pack_narrow(const float* x, float factor, int64_t k, int64_t cols, int64_t t, int64_t tokens,
                               char* packed) {
  for (int64_t v = 0; v < 4; ++v) {
    const __m512i quads = split_quads(load_columns(x, k + 16 * v, cols), factor);
    char* to = packed + (4 * v * tokens + t) * 16;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_extracti32x4_epi32(quads, 0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16 * tokens), _mm512_extracti32x4_epi32(quads, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 32 * tokens), _mm512_extracti32x4_epi32(quads, 2));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 48 * tokens), _mm512_extracti32x4_epi32(quads, 3));
  }
}

// Columns [k, k + 64) of 16 tokens (null: a token that is not there).
TANDEM_INLINE void pack_wide(const float* const (&x)[kTileRows], const float* factor, int64_t k, int64_t cols,
                             char* packed) {
  __m512i planes[kDigits][kTileRows];
  for (int64_t t = 0; t < kTileRows; ++t) {
    if (x[t] == nullptr) {
      for (auto& plane : planes) plane[t] = _mm512_setzero_si512();
      continue;
    }
    __m512i quads[4];
    for (int64_t v = 0; v < 4; ++v) quads[v] = split_quads(load_columns(x[t], k + 16 * v, cols), factor[t]);
    const __m512i low01 = _mm512_unpacklo_epi32(quads[0], quads[1]);
    const __m512i low23 = _mm512_unpacklo_epi32(quads[2], quads[3]);
    planes[0][t] = _mm512_unpacklo_epi64(low01, low23);
    planes[1][t] = _mm512_unpackhi_epi64(low01, low23);
    planes[2][t] =
        _mm512_unpacklo_epi64(_mm512_unpackhi_epi32(quads[0], quads[1]), _mm512_unpackhi_epi32(quads[2], quads[3]));
  }
  for (int64_t p = 0; p < kDigits; ++p) {
    transpose(planes[p]);
    for (int64_t j = 0; j < kTileRows; ++j) {  // quarter j / 4 of register j % 4
      _mm512_storeu_si512(packed + p * kTileBytes + (4 * (j % 4) + j / 4) * 64, planes[p][j]);
    }
  }
}

// ---- products -----------------------------------------------------------------------------------------------------

// Left factors: rows of int8 from `codes` on, `stride` bytes apart. While they are multiplied, as many rows from `next`
// on are prefetched (null: nothing).
struct LeftRows {
  const char* codes;
  int64_t stride;
  int64_t col_tiles;
  const char* next;
};

// Of a group of kRowTiles tiles of rows, as many lines as one column of tiles has: step i of its col_tiles. Not those
// of column i: a processor reads ahead along pages, which sixteen rows at once hide from it, so the group is walked as
// eight streams, each line after line.
template <int64_t kRowTiles>
TANDEM_INLINE void prefetch_step(const char* group, int64_t stride, int64_t i) {
  constexpr int64_t kStreams = 8;
  constexpr int64_t kBytes = kRowTiles * kTileBytes / kStreams;
  const char* line = group + i * kBytes;
  for (int64_t b = 0; b < kBytes; b += 64) {
    for (int64_t stream = 0; stream < kStreams; ++stream) {
      _mm_prefetch(line + b + stream * (kRowTiles * kTileRows / kStreams) * stride, _MM_HINT_T1);
    }
  }
}
template <int64_t kRowTiles>
TANDEM_INLINE void prefetch_next(const LeftRows& rows, int64_t i) {
  if (rows.next != nullptr) prefetch_step<kRowTiles>(rows.next, rows.stride, i);
}

// Tiles of the narrow form: 0 and 1 sums, 2 to 5 left, 6 and 7 right factors; their rows and width are configured.
TANDEM_INLINE TileConfig narrow_config(int64_t rows, int64_t tokens) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = tile >= 2 && tile < 6 ? 64 : static_cast<uint16_t>(16 * tokens);
  }
  for (int tile = 0; tile < 6; ++tile) config.rows[tile] = static_cast<uint8_t>(rows);
  return config;
}

// sums[row tile][16 rows × tokens × 4]
template <bool kTwo>
TANDEM_INLINE void multiply_narrow(const LeftRows& rows, const char* packed, int64_t tokens, int32_t* sums) {
  const int64_t step = narrow_bytes(tokens);
  const int64_t width = 16 * tokens;
  const char* second = rows.codes + kTileRows * rows.stride;
  _tile_zero(0);
  if constexpr (kTwo) _tile_zero(1);
  int64_t i = 0;
  for (; i + 2 <= rows.col_tiles; i += 2) {
    prefetch_next<kTwo ? 2 : 1>(rows, i);
    prefetch_next<kTwo ? 2 : 1>(rows, i + 1);
    _tile_loadd(6, packed + i * step, width);
    _tile_loadd(2, rows.codes + i * kInt8Cols, rows.stride);
    _tile_dpbssd(0, 2, 6);
    if constexpr (kTwo) {
      _tile_loadd(3, second + i * kInt8Cols, rows.stride);
      _tile_dpbssd(1, 3, 6);
    }
    _tile_loadd(7, packed + (i + 1) * step, width);
    _tile_loadd(4, rows.codes + (i + 1) * kInt8Cols, rows.stride);
    _tile_dpbssd(0, 4, 7);
    if constexpr (kTwo) {
      _tile_loadd(5, second + (i + 1) * kInt8Cols, rows.stride);
      _tile_dpbssd(1, 5, 7);
    }
  }
  if (i < rows.col_tiles) {
    prefetch_next<kTwo ? 2 : 1>(rows, i);
    _tile_loadd(6, packed + i * step, width);
    _tile_loadd(2, rows.codes + i * kInt8Cols, rows.stride);
    _tile_dpbssd(0, 2, 6);
    if constexpr (kTwo) {
      _tile_loadd(3, second + i * kInt8Cols, rows.stride);
      _tile_dpbssd(1, 3, 6);
    }
  }
  _tile_stored(0, sums, width);
  if constexpr (kTwo) _tile_stored(1, sums + kTileRows * 4 * tokens, width);
}

// Tiles of the wide form: 0 to 5 sums, 6 a left and 7 a right factor.
TANDEM_INLINE TileConfig wide_config(int64_t rows) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.row_bytes[tile] = 64;
  for (int tile = 0; tile < 7; ++tile) config.rows[tile] = static_cast<uint8_t>(rows);
  return config;
}

// sums[row tile][digit][16 rows × 16 tokens]
template <bool kTwo>
TANDEM_INLINE void multiply_wide(const LeftRows& rows, const char* packed, int32_t* sums) {
  const char* second = rows.codes + kTileRows * rows.stride;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  if constexpr (kTwo) {
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
  }
  for (int64_t i = 0; i < rows.col_tiles; ++i, packed += kWideBytes) {
    prefetch_next<kTwo ? 2 : 1>(rows, i);
    const char* first_tile = rows.codes + i * kInt8Cols;
    const char* second_tile = second + i * kInt8Cols;
    // The unit keeps the right factor of its last product, so a left tile is loaded again rather than a right one.
    _tile_loadd(7, packed, 64);
    _tile_loadd(6, first_tile, rows.stride);
    _tile_dpbssd(0, 6, 7);
    if constexpr (kTwo) {
      _tile_loadd(6, second_tile, rows.stride);
      _tile_dpbssd(3, 6, 7);
    }
    _tile_loadd(7, packed + kTileBytes, 64);
    if constexpr (kTwo) {
      _tile_dpbssd(4, 6, 7);
      _tile_loadd(6, first_tile, rows.stride);
    }
    _tile_dpbssd(1, 6, 7);
    _tile_loadd(7, packed + 2 * kTileBytes, 64);
    _tile_dpbssd(2, 6, 7);
    if constexpr (kTwo) {
      _tile_loadd(6, second_tile, rows.stride);
      _tile_dpbssd(5, 6, 7);
    }
  }
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + kResultFloats, 64);
  _tile_stored(2, sums + 2 * kResultFloats, 64);
  if constexpr (kTwo) {
    _tile_stored(3, sums + 3 * kResultFloats, 64);
    _tile_stored(4, sums + 4 * kResultFloats, 64);
    _tile_stored(5, sums + 5 * kResultFloats, 64);
  }
}

// ---- results ------------------------------------------------------------------------------------------------------

// (c₁·2¹⁶ + (c₂·2⁸ + c₃)) · row_scale · s
TANDEM_INLINE __m512 join_digits(__m512i c3, __m512i c2, __m512i c1, __m512 row_scale, __m512 s) {
  const __m512 low = _mm512_fmadd_ps(_mm512_cvtepi32_ps(c2), _mm512_set1_ps(256.f), _mm512_cvtepi32_ps(c3));
  const __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(c1), _mm512_set1_ps(65536.f), low);
  return _mm512_mul_ps(_mm512_mul_ps(sum, row_scale), s);
}

// The results of 16 rows and token t: one register, row after row.
TANDEM_INLINE __m512 narrow_results(const int32_t* sums, int64_t t, int64_t tokens, __m512 row_scales, float s) {
  const __m512i row = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i index = _mm512_mullo_epi32(row, _mm512_set1_epi32(static_cast<int>(4 * tokens)));
  const int32_t* from = sums + 4 * t;
  return join_digits(_mm512_i32gather_epi32(index, from, 4), _mm512_i32gather_epi32(index, from + 1, 4),
                     _mm512_i32gather_epi32(index, from + 2, 4), row_scales, _mm512_set1_ps(s));
}

// The results of 16 rows and 16 tokens: results[t], row after row.
TANDEM_INLINE void wide_results(const int32_t* sums, const float* row_scales, const float* s,
                                __m512i (&results)[kTileRows]) {
  const __m512 token_scales = _mm512_loadu_ps(s);
  for (int64_t o = 0; o < kTileRows; ++o) {
    const int32_t* at = sums + o * kTileRows;
    results[o] = _mm512_castps_si512(join_digits(_mm512_loadu_si512(at), _mm512_loadu_si512(at + kResultFloats),
                                                 _mm512_loadu_si512(at + 2 * kResultFloats),
                                                 _mm512_set1_ps(row_scales[o]), token_scales));
  }
  transpose(results);
}

}  // namespace
}  // namespace tandem

// kernels/amx/tiles.inl: products of stored weights on AMX tiles, exact in every factor. For files built as `_amx`
// only.
//
//   A tile multiplies bf16 by bf16 and adds in f32. bf16 and MXFP4 weights are bf16 numbers as they are, so they enter
//   unrounded. An activation x is split into three bf16 numbers, x = x₁ + x₂ + x₃ (8 bits of its significand each, the
//   split is exact above 2⁻¹¹⁰), and Σ_k W x becomes three products of 16-bit significands, exact in f32, under one f32
//   sum of 3·K terms: an error of an f32 sum, not of a bf16 product.
//   (The split is the one of "bf16x3" GEMM emulation: Henry, Tang, Heinecke, 2019.)
//
//   Weights are the left factor and lie in a tile as the file stores them, [16 outputs × 32 columns]; activations are
//   packed once a call as right factors, [16 column pairs × 16 tokens × 2] for each plane; a result tile is
//   [16 outputs × 16 tokens], which is the packed form of the next product but for its split.
//   Each (token, output) is one chain over the columns in ascending order, plane after plane: its bits depend on no
//   other token and on no tile boundary.
#pragma once

#include <cstdint>

#include "kernels/amx/mxfp4_bf16.h"
#include "kernels/simd/vec_avx512.h"
#include "tensor/weight_view.h"

namespace tandem {
namespace {

constexpr int64_t kTileRows = 16;  // outputs, or tokens
constexpr int64_t kTileCols = 32;  // columns of W under one tile
constexpr int64_t kTileBytes = 1024;
constexpr int64_t kPlanes = 3;
constexpr int64_t kPackedBytes = kPlanes * kTileBytes;  // 32 columns of 16 tokens
constexpr int64_t kPanelRows = 2 * kTileRows;           // outputs multiplied together
constexpr int64_t kResultFloats = kTileRows * kTileRows;

TANDEM_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
TANDEM_INLINE int64_t tiles_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The compiler is told that all of the configuration is read: of the intrinsic's operand it knows eight bytes, and
// drops the stores of the rest.
TANDEM_INLINE void load_config(const TileConfig& config) {
  __asm__ volatile("" : : "m"(config));
  _tile_loadconfig(&config);
}

// The eight tiles of 16 rows, for the scope of one task: sums in 0 to 3, left factors in 4 and 5, right factors in 6
// and 7. `row_bytes`: of a right factor and of its sums, 4 a column.
class TileScope {
 public:
  TANDEM_INLINE explicit TileScope(int64_t row_bytes = 64) {
    TileConfig config;
    for (int i = 0; i < 8; ++i) config.row_bytes[i] = i == 4 || i == 5 ? 64 : static_cast<uint16_t>(row_bytes);
    load_config(config);
  }
  TANDEM_INLINE ~TileScope() { _tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

// ---- packing ------------------------------------------------------------------------------------------------------

TANDEM_INLINE __m512i widen_low(__m512i bf16) {  // of 32, the first 16 as f32 bits
  return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(bf16)), 16);
}
TANDEM_INLINE __m512i widen_high(__m512i bf16) {
  return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(bf16, 1)), 16);
}

// What a plane leaves of a value. An infinite plane leaves nothing: the sum shall be infinite, not NaN.
TANDEM_INLINE __m512 rest_of(__m512 value, __m512i plane) {
  constexpr int kInfinities = 0x18;
  const __m512 taken = _mm512_castsi512_ps(plane);
  const __mmask16 is_finite = _knot_mask16(_mm512_fpclass_ps_mask(taken, kInfinities));
  return _mm512_maskz_sub_ps(is_finite, value, taken);
}

// Three planes of 32 values: dword j holds values 2j and 2j + 1.
TANDEM_INLINE void split_pairs(__m512 low, __m512 high, __m512i (&planes)[kPlanes]) {
  for (int p = 0; p < kPlanes; ++p) {
    planes[p] = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    low = rest_of(low, widen_low(planes[p]));
    high = rest_of(high, widen_high(planes[p]));
  }
}

// rows[i][j] ↔ rows[j][i], 16 × 16 dwords.
TANDEM_INLINE void transpose(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // Now r[4a + b] holds, in its quarter q, column 4q + b of rows 4a … 4a + 3.
  for (int b = 0; b < 4; ++b) {
    const __m512i low = _mm512_shuffle_i32x4(r[b], r[4 + b], 0x88);      // quarters 0, 2 of rows 0–3, then of 4–7
    const __m512i low_odd = _mm512_shuffle_i32x4(r[b], r[4 + b], 0xdd);  // quarters 1, 3
    const __m512i high = _mm512_shuffle_i32x4(r[8 + b], r[12 + b], 0x88);
    const __m512i high_odd = _mm512_shuffle_i32x4(r[8 + b], r[12 + b], 0xdd);
    t[b] = _mm512_shuffle_i32x4(low, high, 0x88);
    t[8 + b] = _mm512_shuffle_i32x4(low, high, 0xdd);
    t[4 + b] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
    t[12 + b] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd);
  }
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

// Columns [k, k + 32) of 16 tokens (null: a token that is not there) as right factors, plane after plane. `cols`: of x.
TANDEM_INLINE void pack_columns(const float* const (&x)[kTileRows], int64_t k, int64_t cols, char* packed) {
  const auto low_mask = simd::first_lanes(least(cols - k, 16));
  const auto high_mask = simd::first_lanes(least(cols - k > 16 ? cols - k - 16 : 0, 16));
  __m512i planes[kPlanes][kTileRows];
  for (int64_t t = 0; t < kTileRows; ++t) {
    __m512i split[kPlanes];
    const float* row = x[t];
    const __m512 low = row == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(low_mask, row + k);
    const __m512 high = row == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(high_mask, row + k + 16);
    split_pairs(low, high, split);
    for (int p = 0; p < kPlanes; ++p) planes[p][t] = split[p];
  }
  for (int p = 0; p < kPlanes; ++p) {
    transpose(planes[p]);
    for (int64_t pair = 0; pair < kTileRows; ++pair) {
      _mm512_storeu_si512(packed + p * kTileBytes + pair * 64, planes[p][pair]);
    }
  }
}

// All columns of 16 tokens.
TANDEM_INLINE void pack_tokens(const float* const (&x)[kTileRows], int64_t cols, char* packed) {
  for (int64_t k = 0; k < cols; k += kTileCols) pack_columns(x, k, cols, packed + k / kTileCols * kPackedBytes);
}

// Results of 32 outputs × 16 tokens (row o at values + 16·o) as right factors of the next product.
TANDEM_INLINE void pack_results(const float* values, char* packed) {
  for (int64_t pair = 0; pair < kTileRows; ++pair) {
    __m512 even = _mm512_loadu_ps(values + 2 * pair * kTileRows);
    __m512 odd = _mm512_loadu_ps(values + (2 * pair + 1) * kTileRows);
    for (int p = 0; p < kPlanes; ++p) {
      const __m512i even_bits = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(even)));
      const __m512i odd_bits =
          _mm512_slli_epi32(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(odd))), 16);
      _mm512_storeu_si512(packed + p * kTileBytes + pair * 64, _mm512_or_si512(even_bits, odd_bits));
      even = rest_of(even, _mm512_slli_epi32(even_bits, 16));
      odd = rest_of(odd, odd_bits);
    }
  }
}

// ---- weights ------------------------------------------------------------------------------------------------------

TANDEM_INLINE bool is_exact_in_bf16(const WeightView& weight) {
  return weight.format == WeightFormat::kBF16 || weight.format == WeightFormat::kMxfp4;
}

// A group of 32 MXFP4 codes as bf16, in column order.
TANDEM_INLINE __m512i decode_group(const uint8_t* packed, uint8_t scale) {
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed)));
  // The permute reads five bits of a word: the low nibble and one bit that the table does not tell apart.
  const __m512i index = _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12));
  return _mm512_permutexvar_epi16(index, _mm512_load_si512(simd::kScaledE2M1Bf16.row[scale]));
}

// 32 rows of W as left factors, tile after tile: [column tile][2][16 rows × 64 bytes], in `panel`. In the file the rows
// of a tile lie a power of two apart, in the same few sets of a cache; and every token block reads them again.
TANDEM_INLINE void fill_panel(const WeightView& weight, int64_t row, char* panel) {
  constexpr int64_t kAhead = 1024;  // bytes of each row
  const int64_t tiles = tiles_of(weight.cols, kTileCols);
  const auto* data = static_cast<const char*>(weight.data);
  const int64_t rows = least(weight.rows - row, kPanelRows);
  for (int64_t i = 0; i < tiles; ++i, panel += 2 * kTileBytes) {
    if (weight.format == WeightFormat::kMxfp4) {
      for (int64_t r = 0; r < rows; ++r) {
        const char* codes = data + (row + r) * (weight.cols / 2) + i * 16;
        if (i % 4 == 0) _mm_prefetch(codes + kAhead / 4, _MM_HINT_T1);
        _mm512_storeu_si512(panel + r * 64,
                            decode_group(reinterpret_cast<const uint8_t*>(codes), weight.scale[(row + r) * tiles + i]));
      }
    } else {
      const int64_t left = least(weight.cols - i * kTileCols, kTileCols);
      const auto mask = static_cast<__mmask32>((uint64_t{1} << left) - 1);
      for (int64_t r = 0; r < rows; ++r) {
        const char* values = data + ((row + r) * weight.cols + i * kTileCols) * 2;
        _mm_prefetch(values + kAhead, _MM_HINT_T1);
        _mm512_storeu_si512(panel + r * 64, _mm512_maskz_loadu_epi16(mask, values));
      }
    }
    for (int64_t r = rows; r < kPanelRows; ++r) _mm512_storeu_si512(panel + r * 64, _mm512_setzero_si512());
  }
}
TANDEM_INLINE int64_t panel_bytes(int64_t cols) { return tiles_of(cols, kTileCols) * 2 * kTileBytes; }

// ---- the product --------------------------------------------------------------------------------------------------

// 32 outputs × 16 or 32 tokens over all columns: result[t][o][16], token tiles of 32 × 16 floats one after the other.
// `packed`: the first token tile; the second, if any, lies packed_stride bytes behind it.
template <bool kTwo>
TANDEM_INLINE void multiply(const char* panel, const char* packed, int64_t packed_stride, int64_t col_tiles,
                            float* result) {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kTwo) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t i = 0; i < col_tiles; ++i) {
    _tile_loadd(4, panel + i * 2 * kTileBytes, 64);
    _tile_loadd(5, panel + i * 2 * kTileBytes + kTileBytes, 64);
    const char* planes = packed + i * kPackedBytes;
    for (int64_t p = 0; p < kPlanes; ++p) {
      // The unit keeps the right factor of its last product: each is used twice in a row.
      _tile_loadd(6, planes + p * kTileBytes, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 5, 6);
      if constexpr (kTwo) {
        _tile_loadd(7, planes + packed_stride + p * kTileBytes, 64);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
  _tile_stored(0, result, 64);
  _tile_stored(1, result + kResultFloats, 64);
  if constexpr (kTwo) {
    _tile_stored(2, result + 2 * kResultFloats, 64);
    _tile_stored(3, result + 3 * kResultFloats, 64);
  }
}

// visit(tile, result of 32 outputs × 16 tokens) for token tiles [begin, end).
template <class Visit>
TANDEM_INLINE void multiply_tiles(const char* panel, const char* packed, int64_t col_tiles, int64_t begin, int64_t end,
                                  const Visit& visit) {
  alignas(64) float result[4 * kResultFloats];
  const int64_t stride = col_tiles * kPackedBytes;
  for (int64_t tile = begin; tile < end; tile += 2) {
    if (tile + 1 < end) {
      multiply<true>(panel, packed + tile * stride, stride, col_tiles, result);
      visit(tile, result);
      visit(tile + 1, result + 2 * kResultFloats);
    } else {
      multiply<false>(panel, packed + tile * stride, stride, col_tiles, result);
      visit(tile, result);
    }
  }
}

// Half of a result (16 outputs × 16 tokens) by token: rows[t] holds the outputs of token t.
TANDEM_INLINE void by_token(const float* half, __m512i (&rows)[16]) {
  for (int64_t o = 0; o < kTileRows; ++o) rows[o] = _mm512_loadu_si512(half + o * kTileRows);
  transpose(rows);
}

}  // namespace
}  // namespace tandem

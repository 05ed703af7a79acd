// kernels/amx/stream_tiles.inl: products of bf16 weights and the few tokens of a decode: every weight passes once, at
// the speed of memory. For files built as `_amx` only.
//
//   Factors as in tiles.inl, but each plane of the activations keeps a sum of its own,
//     y = (Σ_k W x₁ + Σ_k W x₂) + Σ_k W x₃,   each Σ a chain over the columns in ascending order:
//   a product waits for the one before it in its chain longer than it occupies the unit.
//   Up to five tokens lie beside each other with their planes in one right factor, [16 column pairs × 3 T]: one product
//   a tile of weights. More lie in three of [16 × 16]. A column of a product depends on no other column, so a token's
//   bits are the same alone and among others.
//
//   Weights are loaded as tiles from where they lie.
#pragma once

#include "kernels/amx/tiles.inl"

namespace tandem {
namespace {

constexpr int64_t kMergedTokens = 5;  // 3 · 5 of 16 columns

// How the right factors of up to 16 tokens lie: column tile i at packed + i · tile_bytes, rows of row_bytes.
struct RightLayout {
  int64_t tokens;
  bool is_merged;
  int64_t row_bytes;
  int64_t tile_bytes;
};
// `tokens`: the most that one of the tiles holds that are packed alike.
TANDEM_INLINE RightLayout right_layout(int64_t tokens) {
  if (tokens > kMergedTokens) return {tokens, false, 64, kPackedBytes};
  const int64_t row_bytes = kPlanes * 4 * tokens;
  return {tokens, true, row_bytes, kTileRows * row_bytes};
}

// ---- packing ------------------------------------------------------------------------------------------------------

// 32 columns of `tokens` tokens, token t's in low[t] and high[t], as right factors.
TANDEM_INLINE void pack_column_tile(const __m512* low, const __m512* high, const RightLayout& layout, char* packed) {
  if (layout.is_merged) {
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i offset = _mm512_mullo_epi32(lane, _mm512_set1_epi32(static_cast<int>(layout.row_bytes)));
    for (int64_t t = 0; t < layout.tokens; ++t) {
      __m512i planes[kPlanes];
      split_pairs(low[t], high[t], planes);
      for (int64_t p = 0; p < kPlanes; ++p) {
        _mm512_i32scatter_epi32(packed + (p * layout.tokens + t) * 4, offset, planes[p], 1);
      }
    }
    return;
  }
  __m512i planes[kPlanes][kTileRows];
  for (int64_t t = 0; t < kTileRows; ++t) {
    __m512i split[kPlanes] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    if (t < layout.tokens) split_pairs(low[t], high[t], split);
    for (int64_t p = 0; p < kPlanes; ++p) planes[p][t] = split[p];
  }
  for (int64_t p = 0; p < kPlanes; ++p) {
    transpose(planes[p]);
    for (int64_t pair = 0; pair < kTileRows; ++pair) {
      _mm512_storeu_si512(packed + p * kTileBytes + pair * 64, planes[p][pair]);
    }
  }
}

// Column tiles [begin, end) of the tokens whose rows are x[t].
TANDEM_INLINE void pack_few(const float* const* x, const RightLayout& layout, int64_t cols, int64_t begin, int64_t end,
                            char* packed) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t k = i * kTileCols;
    const auto low_mask = simd::first_lanes(least(cols - k, 16));
    const auto high_mask = simd::first_lanes(least(cols - k > 16 ? cols - k - 16 : 0, 16));
    __m512 low[kTileRows], high[kTileRows];
    for (int64_t t = 0; t < layout.tokens; ++t) {
      low[t] = _mm512_maskz_loadu_ps(low_mask, x[t] + k);
      high[t] = _mm512_maskz_loadu_ps(high_mask, x[t] + k + 16);
    }
    pack_column_tile(low, high, layout, packed + i * layout.tile_bytes);
  }
}

// ---- the sums of 16 rows --------------------------------------------------------------------------------------------

TANDEM_INLINE void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
}

// Adds the product of the weights in tile 4.
template <bool kMerged>
TANDEM_INLINE void add_product(const char* right, int64_t row_bytes) {
  _tile_loadd(6, right, row_bytes);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (!kMerged) {
    _tile_loadd(7, right + kTileBytes, row_bytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, right + 2 * kTileBytes, row_bytes);
    _tile_dpbf16ps(2, 4, 6);
  }
}

// sums[t]: the 16 rows' values of token t.
template <bool kMerged>
TANDEM_INLINE void take_sums(int64_t tokens, __m512* sums) {
  alignas(64) float raw[kPlanes * kResultFloats];
  if constexpr (kMerged) {
    const int64_t width = kPlanes * tokens;
    _tile_stored(0, raw, width * 4);
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i index = _mm512_mullo_epi32(lane, _mm512_set1_epi32(static_cast<int>(width)));
    for (int64_t t = 0; t < tokens; ++t) {
      const __m512 first = _mm512_i32gather_ps(index, raw + t, 4);
      const __m512 second = _mm512_i32gather_ps(index, raw + tokens + t, 4);
      const __m512 third = _mm512_i32gather_ps(index, raw + 2 * tokens + t, 4);
      sums[t] = _mm512_add_ps(_mm512_add_ps(first, second), third);
    }
  } else {
    _tile_stored(0, raw, 64);
    _tile_stored(1, raw + kResultFloats, 64);
    _tile_stored(2, raw + 2 * kResultFloats, 64);
    __m512i rows[kTileRows];
    for (int64_t o = 0; o < kTileRows; ++o) {
      const float* own = raw + o * kTileRows;
      const __m512 sum = _mm512_add_ps(_mm512_load_ps(own), _mm512_load_ps(own + kResultFloats));
      rows[o] = _mm512_castps_si512(_mm512_add_ps(sum, _mm512_load_ps(own + 2 * kResultFloats)));
    }
    transpose(rows);
    for (int64_t t = 0; t < tokens; ++t) sums[t] = _mm512_castsi512_ps(rows[t]);
  }
}

// ---- weights past the tokens
// ------------------------------------------------------------------------------------------

// A column tile of `count` rows that may not be loaded from where it lies: fewer than 16 rows, or the end of them.
TANDEM_INLINE void copy_bf16_tile(const char* rows, int64_t count, int64_t stride, int64_t left, char* tile) {
  const auto mask = static_cast<__mmask32>((uint64_t{1} << least(left, kTileCols)) - 1);
  for (int64_t r = 0; r < kTileRows; ++r) {
    const __m512i values = r < count ? _mm512_maskz_loadu_epi16(mask, rows + r * stride) : _mm512_setzero_si512();
    _mm512_store_si512(tile + r * 64, values);
  }
}

// 16 rows or fewer of `cols` bf16 weights from `rows` on. Eight tiles ahead, what is read next is on its way: at the
// end of the rows, those that follow in memory.
template <bool kMerged>
TANDEM_INLINE void stream_rows(const char* rows, int64_t count, int64_t cols, const char* packed,
                               const RightLayout& layout) {
  constexpr int64_t kAheadTiles = 8;
  alignas(64) char copy[kTileBytes];
  const int64_t stride = cols * 2;
  const int64_t tiles = tiles_of(cols, kTileCols);
  const int64_t whole_tiles = count == kTileRows ? cols / kTileCols : 0;
  const char* next = rows + kTileRows * stride;
  zero_sums();
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t ahead = i + kAheadTiles;
    const char* soon = ahead < tiles ? rows + ahead * 64 : next + (ahead - tiles) * 64;
    for (int64_t r = 0; r < kTileRows; ++r) _mm_prefetch(soon + r * stride, _MM_HINT_T0);
    if (i < whole_tiles) {
      _tile_loadd(4, rows + i * 64, stride);
    } else {
      copy_bf16_tile(rows + i * 64, count, stride, cols - i * kTileCols, copy);
      _tile_loadd(4, copy, 64);
    }
    add_product<kMerged>(packed + i * layout.tile_bytes, layout.row_bytes);
  }
}

// sums[t]: the values of up to 16 rows from `rows` on for token t. In a TileScope of the layout.
TANDEM_INLINE void multiply_rows(const char* rows, int64_t count, int64_t cols, const char* packed,
                                 const RightLayout& layout, __m512* sums) {
  if (layout.is_merged) {
    stream_rows<true>(rows, count, cols, packed, layout);
    take_sums<true>(layout.tokens, sums);
  } else {
    stream_rows<false>(rows, count, cols, packed, layout);
    take_sums<false>(layout.tokens, sums);
  }
}

}  // namespace
}  // namespace tandem

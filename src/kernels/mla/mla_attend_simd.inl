// kernels/mla/mla_attend_simd.inl: one tile of keys against a panel of queries over Vec: scores, softmax weights,
// weighted values. Included by both forms' `_simd.inl` files: absorbed, the queries are a row's heads and keys and
// values are the latents themselves; expanded, they are rows of one head.
//
//   Queries lie in lanes, up to kTileWidth of them, so that a softmax over keys needs no sum across lanes, and keys and
//   values are read as they are stored:
//     scores [keys, queries] = K Qᵀ,   out [queries, values] = correction ⊙ out + Pᵀ V
//   Tiles of kTile keys lie on a grid from position 0; every score and every output element is one chain of fma in the
//   order of its sum, whatever the panel and the register tile it falls in.
//   Online softmax: Milakov and Gimelshein 2018; tiling: FlashAttention.
#pragma once

#include "kernels/mla/mla_load_simd.inl"

namespace tandem {
namespace {

constexpr int64_t kTile = 64;  // keys whose weights are computed together

// Rows of a matrix `depth` wide.
struct KeyPart {
  const float* data;
  int64_t row;
  int64_t depth;
};

// What a panel has seen so far, and the scratch of a tile. `largest`, `sum`: [kTileWidth].
struct Panel {
  const float* query;  // [depth of both key parts, kTileWidth], lanes without a query are zeros
  float* largest;
  float* sum;
  float* weights;     // [kTile, kTileWidth] scores, then exp(score − largest)
  float* correction;  // [kTileWidth] exp(largest before − largest)
  bool first;         // nothing was seen before: largest, sum and out are not read
};

template <int kRows, int kCols>
TANDEM_INLINE void score_rows(const KeyPart& first, const KeyPart& second, int64_t s, const Panel& panel) {
  Vec acc[kRows][kCols];
  tile_zero(acc);
  tile_fma<kRows, true>(acc, {first.data + s * first.row, first.row, 1}, panel.query, kTileWidth, first.depth,
                        kTileWidth);
  tile_fma<kRows, true>(acc, {second.data + s * second.row, second.row, 1}, panel.query + first.depth * kTileWidth,
                        kTileWidth, second.depth, kTileWidth);
  tile_store<true>(acc, panel.weights + s * kTileWidth, kTileWidth, kTileWidth);
}

// Scores of `count` keys, whose columns are those of the first part, then those of the second, against kCols registers
// of queries.
template <int kCols>
TANDEM_INLINE void score_tile(const KeyPart& first, const KeyPart& second, int64_t count, const Panel& panel) {
  constexpr int kRows = kTileRows * kTileCols / kCols;
  if (count < kRows) {
    for (int64_t s = 0; s < count; ++s) score_rows<1, kCols>(first, second, s, panel);
    return;
  }
  // The last step ends on the last key: what it computes twice comes out the same.
  for (int64_t s = 0; s < count; s += kRows) {
    score_rows<kRows, kCols>(first, second, least(s, count - kRows), panel);
  }
}

// Scores to weights. kMasked: the query in lane l sees keys up to visible[l] of the tile.
template <int kCols, bool kMasked>
TANDEM_INLINE void soften(int64_t count, float scale, const float* visible, const Panel& panel) {
  const Vec minus_infinity = simd::broadcast(-__builtin_inff());
  for (int v = 0; v < kCols; ++v) {
    float* column = panel.weights + v * kLanes;
    Vec seen = simd::zero();
    if (kMasked) seen = simd::load(visible + v * kLanes);
    const Vec before = panel.first ? minus_infinity : simd::load(panel.largest + v * kLanes);
    Vec updated = before;
    for (int64_t s = 0; s < count; ++s) {
      Vec score = simd::broadcast(scale) * simd::load(column + s * kTileWidth);
      if (kMasked)
        score = simd::select(simd::less(seen, simd::broadcast(static_cast<float>(s))), minus_infinity, score);
      simd::store(column + s * kTileWidth, score);
      updated = simd::max(score, updated);
    }
    Vec total = simd::zero();
    for (int64_t s = 0; s < count; ++s) {
      const Vec weight = simd::exp(simd::load(column + s * kTileWidth) - updated);
      simd::store(column + s * kTileWidth, weight);
      total = total + weight;
    }
    const Vec factor = panel.first ? simd::zero() : simd::exp(before - updated);
    const Vec earlier = panel.first ? simd::zero() : simd::load(panel.sum + v * kLanes);
    simd::store(panel.correction + v * kLanes, factor);
    simd::store(panel.sum + v * kLanes, simd::fma(factor, earlier, total));
    simd::store(panel.largest + v * kLanes, updated);
  }
}

// Keys of the tile, of `count`, that the query in lane q sees. `visible` as soften has it; null: every query sees all.
TANDEM_INLINE int64_t keys_seen(const float* visible, int64_t q, int64_t count) {
  if (visible == nullptr) return count;
  const int64_t seen = static_cast<int64_t>(visible[q]) + 1;
  return seen < 0 ? 0 : least(seen, count);
}

// Weighted values of kRows queries from lane q on, columns from c on of which `left` exist. Keys that a query does not
// see are left out, not weighted with 0: they may not be finite.
template <int kRows, bool kFull>
TANDEM_INLINE void gather_rows(const KeyPart& values, int64_t count, int64_t c, int64_t left, int64_t q,
                               const float* visible, const Panel& panel, float* out, int64_t out_row) {
  Vec acc[kRows][kTileCols];
  tile_zero(acc);
  if (!panel.first) {
    for (int r = 0; r < kRows; ++r) {
      const Vec factor = simd::broadcast(panel.correction[q + r]);
      for (int v = 0; v < kTileCols; ++v) {
        acc[r][v] = factor * load_cols<kFull>(out + r * out_row + c + v * kLanes, left - v * kLanes);
      }
    }
  }
  const int64_t common = keys_seen(visible, q, count);
  tile_fma<kRows, kFull>(acc, {panel.weights + q, 1, kTileWidth}, values.data + c, values.row, common, left);
#pragma GCC unroll 8
  for (int r = 1; r < kRows; ++r) {
    const int64_t seen = keys_seen(visible, q + r, count);
    for (int64_t s = common; s < seen; ++s) {
      const Vec weight = simd::broadcast(panel.weights[s * kTileWidth + q + r]);
      const float* value = values.data + s * values.row + c;
      for (int v = 0; v < kTileCols; ++v) {
        acc[r][v] = simd::fma(weight, load_cols<kFull>(value + v * kLanes, left - v * kLanes), acc[r][v]);
      }
    }
  }
  tile_store<kFull>(acc, out + c, out_row, left);
}

template <bool kFull>
TANDEM_INLINE void gather_columns(const KeyPart& values, int64_t count, int64_t c, int64_t left, int64_t queries,
                                  const float* visible, const Panel& panel, float* out, int64_t out_row) {
  int64_t q = 0;
  for (; q + kTileRows <= queries; q += kTileRows) {
    gather_rows<kTileRows, kFull>(values, count, c, left, q, visible, panel, out + q * out_row, out_row);
  }
  for (; kTileRows > 4 && q + 4 <= queries; q += 4) {
    gather_rows<4, kFull>(values, count, c, left, q, visible, panel, out + q * out_row, out_row);
  }
  for (; q < queries; ++q) {
    gather_rows<1, kFull>(values, count, c, left, q, visible, panel, out + q * out_row, out_row);
  }
}

// out[queries, values.depth], rows out_row apart.
TANDEM_INLINE void gather_values(const KeyPart& values, int64_t count, int64_t queries, const float* visible,
                                 const Panel& panel, float* out, int64_t out_row) {
  int64_t c = 0;
  for (; c + kTileWidth <= values.depth; c += kTileWidth) {
    gather_columns<true>(values, count, c, kTileWidth, queries, visible, panel, out, out_row);
  }
  if (c < values.depth) {
    gather_columns<false>(values, count, c, values.depth - c, queries, visible, panel, out, out_row);
  }
}

// The cached rows of tokens [first, first + count) as floats: where they lie, or in stage [kTile, stage_row] when they
// are stored in 16 bits or on two pages.
TANDEM_INLINE KeyPart load_tile(const PageTable& table, int64_t width, int64_t first, int64_t count, float* stage,
                                int64_t stage_row) {
  const bool one_page = first / table.page_tokens == (first + count - 1) / table.page_tokens;
  if (table.format == WeightFormat::kF32 && one_page) {
    return {static_cast<const float*>(table.row(first)), width, width};
  }
  for (int64_t s = 0; s < count; ++s) widen(table.format, table.row(first + s), 0, width, stage + s * stage_row);
  return {stage, stage_row, width};
}

// Qᵀ of up to kTileWidth queries, rows query_row apart; the other lanes are zeros.
TANDEM_INLINE void load_panel(const float* query, int64_t query_row, int64_t queries, int64_t depth, float* out) {
  transpose(query, query_row, queries, depth, out, kTileWidth);
  for (int64_t c = 0; c < depth && queries < kTileWidth; ++c) {
    for (int64_t i = queries; i < kTileWidth; ++i) out[c * kTileWidth + i] = 0.f;
  }
}

}  // namespace
}  // namespace tandem

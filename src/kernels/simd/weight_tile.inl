// kernels/simd/weight_tile.inl: R rows of a stored matrix times NT tokens, one register of partial sums for each pair:
// the innermost loops of kernels/simd/weight_product.inl, which alone includes this.
#pragma once

#include "kernels/simd/weight_rows.h"

namespace tandem {
namespace {

using namespace simd;

// The largest tile whose accumulators, one weight and the tile's x values fit the register file.
constexpr int kTileTokens = Vec::kLanes == 16 ? 6 : (Vec::kLanes == 8 ? 3 : 2);
constexpr int kMostRows = 8;

// As many rows as registers allow: each row is one more stream from memory, and a fold has more sums to share.
constexpr int tile_rows(int tokens) {
  if (Vec::kLanes == 16) return tokens <= 3 ? 8 : 4;
  return tokens == 1 ? 8 : 4;
}

// While a tile runs, what a later tile will read is prefetched: a hardware prefetcher does not follow eight interleaved
// short rows.
struct Tile {
  const char* row[kMostRows];
  const uint8_t* scale[kMostRows];  // MXFP4
  const float* x[kTileTokens];
  float* y[kTileTokens];  // of the tile's first row
  int64_t cols = 0;
  int64_t ahead = 0;         // bytes from a row to the one prefetched meanwhile
  int64_t scale_ahead = 0;   // the same for its scales
  int64_t num_rows = 0;      // rows beyond it repeat the last one and are not written
  float* partial = nullptr;  // parked sums, one register a (token, row) pair
  bool resume = false;       // start from the parked sums
  bool park = false;         // park instead of finishing
};

template <WeightFormat F, int R, int NT, class Block>
TANDEM_INLINE void multiply_block(const char* const (&row)[R], const float* const (&x)[NT], int64_t k, Block block,
                                  Vec (&acc)[NT][R]) {
  Vec xs[NT];
  TANDEM_UNROLL for (int t = 0; t < NT; ++t) xs[t] = load(x[t] + k, block);
  TANDEM_UNROLL for (int r = 0; r < R; ++r) {
    const Vec w = load_weight<F>(row[r], k, block);
    TANDEM_UNROLL for (int t = 0; t < NT; ++t) acc[t][r] = fma(w, xs[t], acc[t][r]);
  }
}

// `is_widened`: f32 scratch that is in L1 already, so nothing is prefetched.
template <WeightFormat F, int R, int NT, bool is_widened>
TANDEM_INLINE void accumulate_plain(const Tile& tile, Vec (&acc)[NT][R]) {
  const char* row[R];
  const float* x[NT];
  TANDEM_UNROLL for (int r = 0; r < R; ++r) row[r] = tile.row[r];
  TANDEM_UNROLL for (int t = 0; t < NT; ++t) x[t] = tile.x[t];
  const int64_t ahead = tile.ahead;
  constexpr int64_t kLineColumns = 64 * 64 / row_bytes(F, 64);
  int64_t k = 0;
  for (; k + kLineColumns <= tile.cols; k += kLineColumns) {
    if constexpr (!is_widened) {
      TANDEM_UNROLL for (int r = 0; r < R; ++r) __builtin_prefetch(row[r] + ahead + row_bytes(F, k));
    }
    for (int64_t i = 0; i < kLineColumns; i += Vec::kLanes) multiply_block<F>(row, x, k + i, FullBlock{}, acc);
  }
  for (; k + Vec::kLanes <= tile.cols; k += Vec::kLanes) multiply_block<F>(row, x, k, FullBlock{}, acc);
  if (k < tile.cols) multiply_block<F>(row, x, k, TailBlock{tile.cols - k}, acc);
}

template <int R, int NT>
TANDEM_INLINE void accumulate_mxfp4(const Tile& tile, Vec (&acc)[NT][R]) {
  const uint8_t* row[R];
  const uint8_t* scale[R];
  const float* x[NT];
  TANDEM_UNROLL for (int r = 0; r < R; ++r) {
    row[r] = reinterpret_cast<const uint8_t*>(tile.row[r]);
    scale[r] = tile.scale[r];
  }
  TANDEM_UNROLL for (int t = 0; t < NT; ++t) x[t] = tile.x[t];
  const int64_t groups = tile.cols / kGroup;
  const int64_t ahead = tile.ahead;
  const int64_t scale_ahead = tile.scale_ahead;
  for (int64_t g = 0; g < groups; ++g) {
    if (g % 4 == 0) {
      TANDEM_UNROLL for (int r = 0; r < R; ++r) __builtin_prefetch(row[r] + g * kGroupBytes + ahead);
    }
    if (g % 16 == 0) {
      TANDEM_UNROLL for (int r = 0; r < R; ++r) __builtin_prefetch(scale[r] + g + scale_ahead);
    }
    TANDEM_UNROLL for (int r = 0; r < R; ++r) {
      Vec w[kGroupVecs];
      decode_mxfp4_group(row[r] + g * kGroupBytes, scale[r][g], w);
      TANDEM_UNROLL for (int v = 0; v < kGroupVecs; ++v) {
        TANDEM_UNROLL for (int t = 0; t < NT; ++t) acc[t][r] =
            fma(w[v], load(x[t] + g * kGroup + v * Vec::kLanes), acc[t][r]);
      }
    }
  }
}

// out[i] = sum(x[i]) for N vectors.
template <int N>
TANDEM_INLINE void sum_vecs([[maybe_unused]] const Vec* x, [[maybe_unused]] float* out) {
  if constexpr (N >= 16) {
    sum16(x, out);
    sum_vecs<N - 16>(x + 16, out + 16);
  } else if constexpr (N >= 8) {
    sum8(x, out);
    sum_vecs<N - 8>(x + 8, out + 8);
  } else if constexpr (N >= 4) {
    sum4({x[0], x[1], x[2], x[3]}, out);
    sum_vecs<N - 4>(x + 4, out + 4);
  } else if constexpr (N > 0) {
    out[0] = sum(x[0]);
    sum_vecs<N - 1>(x + 1, out + 1);
  }
}

template <WeightFormat F, int R, int NT, bool is_widened>
void run_tile(const Tile& tile) {
  Vec acc[NT][R];
  TANDEM_UNROLL for (int t = 0; t < NT; ++t) {
    TANDEM_UNROLL for (int r = 0; r < R; ++r) {
      acc[t][r] = tile.resume ? load(tile.partial + (t * R + r) * Vec::kLanes) : zero();
    }
  }
  if constexpr (F == WeightFormat::kMxfp4) {
    accumulate_mxfp4<R, NT>(tile, acc);
  } else {
    accumulate_plain<F, R, NT, is_widened>(tile, acc);
  }
  if (tile.park) {
    TANDEM_UNROLL for (int t = 0; t < NT; ++t) {
      TANDEM_UNROLL for (int r = 0; r < R; ++r) store(tile.partial + (t * R + r) * Vec::kLanes, acc[t][r]);
    }
    return;
  }
  float out[NT][R];
  sum_vecs<NT * R>(&acc[0][0], &out[0][0]);
  TANDEM_UNROLL for (int t = 0; t < NT; ++t) {
    if (tile.num_rows >= R) {
      __builtin_memcpy(tile.y[t], out[t], sizeof out[t]);
    } else {
      for (int64_t r = 0; r < tile.num_rows; ++r) tile.y[t][r] = out[t][r];
    }
  }
}

template <WeightFormat F, bool is_widened, int NT>
TANDEM_INLINE void run_tile_or_wider(const Tile& tile, int64_t tokens) {
  if (tokens == NT) return run_tile<F, tile_rows(NT), NT, is_widened>(tile);
  if constexpr (NT < kTileTokens) run_tile_or_wider<F, is_widened, NT + 1>(tile, tokens);
}

}  // namespace
}  // namespace tandem

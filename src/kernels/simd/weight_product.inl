// kernels/simd/weight_product.inl: kernels/simd/weight_product.h over Vec.
#include "kernels/simd/weight_product.h"
#include "kernels/simd/weight_rows.h"

namespace tandem {
namespace {

using namespace simd;

// The largest tile whose accumulators, one weight and the tile's x values fit the register file.
constexpr int kTileTokens = Vec::kLanes == 16 ? 6 : (Vec::kLanes == 8 ? 3 : 2);
constexpr int kTileRows = 4;

// While a tile runs, the rows of the next one are prefetched: a hardware prefetcher does not follow eight interleaved
// short rows (bf16 decode reads 11 GB/s a core without this, 16.6 of 18.2 with it).
struct Tile {
  const char* row[8];
  const uint8_t* scale[8];  // MXFP4
  const float* x[kTileTokens];
  float* y[kTileTokens];  // of the tile's first row
  int64_t cols = 0;
  int64_t ahead = 0;         // bytes from a row to the one the next tile streams in its place
  int64_t num_rows = 0;      // rows beyond it repeat the last one and are not written
  float* partial = nullptr;  // parked sums, one register a (token, row) pair
  bool resume = false;       // start from the parked sums
  bool park = false;         // park instead of finishing
};

template <WeightFormat F, int R, int NT>
TANDEM_INLINE void accumulate_plain(const Tile& tile, Vec (&acc)[NT][R]) {
  const char* row[R];
  const float* x[NT];
  for (int r = 0; r < R; ++r) row[r] = tile.row[r];
  for (int t = 0; t < NT; ++t) x[t] = tile.x[t];
  const int64_t tile_ahead = tile.ahead;
  constexpr bool kPrefetch = F != WeightFormat::kF32 || R == 8;  // widened scratch is in L2 already
  for_each_block(tile.cols, [&](int64_t k, auto block) TANDEM_INLINE_LAMBDA {
    Vec xs[NT];
    for (int t = 0; t < NT; ++t) xs[t] = load(x[t] + k, block);
    for (int r = 0; r < R; ++r) {
      if constexpr (kPrefetch) __builtin_prefetch(row[r] + tile_ahead + row_bytes(F, k));
      const Vec w = load_weight<F>(row[r], k, block);
      for (int t = 0; t < NT; ++t) acc[t][r] = fma(w, xs[t], acc[t][r]);
    }
  });
}

template <int R, int NT>
TANDEM_INLINE void accumulate_mxfp4(const Tile& tile, Vec (&acc)[NT][R]) {
  constexpr int64_t kScaleBlock = 16;  // scales converted together, so that a group broadcasts its own from memory
  const uint8_t* row[R];
  const float* x[NT];
  for (int r = 0; r < R; ++r) row[r] = reinterpret_cast<const uint8_t*>(tile.row[r]);
  for (int t = 0; t < NT; ++t) x[t] = tile.x[t];
  const int64_t groups = tile.cols / kGroup;
  const int64_t tile_ahead = tile.ahead;
  for (int64_t begin = 0; begin < groups; begin += kScaleBlock) {
    const int64_t count = groups - begin < kScaleBlock ? groups - begin : kScaleBlock;
    float scale[R][kScaleBlock];
    for (int r = 0; r < R; ++r) e8m0_scales(tile.scale[r] + begin, count, scale[r]);
    for (int64_t g = 0; g < count; ++g) {
      const int64_t k = (begin + g) * kGroup;
      for (int r = 0; r < R; ++r) {
        if (g % 4 == 0) __builtin_prefetch(row[r] + k / 2 + tile_ahead);
        Vec w[kGroupVecs];
        decode_mxfp4_group(row[r] + k / 2, scale[r][g], w);
        for (int v = 0; v < kGroupVecs; ++v) {
          for (int t = 0; t < NT; ++t) acc[t][r] = fma(w[v], load(x[t] + k + v * Vec::kLanes), acc[t][r]);
        }
      }
    }
  }
}

template <WeightFormat F, int R, int NT>
void run_tile(const Tile& tile) {
  Vec acc[NT][R];
  for (int t = 0; t < NT; ++t) {
    for (int r = 0; r < R; ++r) {
      acc[t][r] = tile.resume ? load(tile.partial + (t * R + r) * Vec::kLanes) : zero();
    }
  }
  if constexpr (F == WeightFormat::kMxfp4) {
    accumulate_mxfp4<R, NT>(tile, acc);
  } else {
    accumulate_plain<F, R, NT>(tile, acc);
  }
  if (tile.park) {
    for (int t = 0; t < NT; ++t) {
      for (int r = 0; r < R; ++r) store(tile.partial + (t * R + r) * Vec::kLanes, acc[t][r]);
    }
    return;
  }
  for (int t = 0; t < NT; ++t) {
    float out[R];
    for (int r = 0; r < R; r += 4) {
      const Vec four[4] = {acc[t][r], acc[t][r + 1], acc[t][r + 2], acc[t][r + 3]};
      sum4(four, out + r);
    }
    if (tile.num_rows >= R) {
      __builtin_memcpy(tile.y[t], out, sizeof out);
    } else {
      for (int64_t r = 0; r < tile.num_rows; ++r) tile.y[t][r] = out[r];
    }
  }
}

template <WeightFormat F>
TANDEM_INLINE void run_tile_of(const Tile& tile, int64_t tokens) {
  switch (tokens) {
    case 1: return run_tile<F, kTileRows, 1>(tile);
    case 2: return run_tile<F, kTileRows, 2>(tile);
    case 3:
      if constexpr (kTileTokens >= 3) return run_tile<F, kTileRows, 3>(tile);
      break;
    case 4:
      if constexpr (kTileTokens >= 4) return run_tile<F, kTileRows, 4>(tile);
      break;
    case 5:
      if constexpr (kTileTokens >= 5) return run_tile<F, kTileRows, 5>(tile);
      break;
    case 6:
      if constexpr (kTileTokens >= 6) return run_tile<F, kTileRows, 6>(tile);
      break;
    default: break;
  }
}

template <WeightFormat F>
void stream_rows(const Product& p) {
  const int64_t bytes = row_bytes(F, p.cols);
  const char* data = static_cast<const char*>(p.data);
  Tile tile;
  tile.cols = p.cols;
  for (int64_t t = 0; t < p.num_tokens; ++t) tile.x[t] = p.x[t];
  const int wide = p.num_tokens == 1 ? 8 : kTileRows;  // one token leaves registers for more rows in flight
  for (int64_t row = p.row_begin; row < p.row_end;) {
    const int64_t left = p.row_end - row;
    const int rows = left >= wide ? wide : kTileRows;
    tile.num_rows = left < rows ? left : rows;
    for (int r = 0; r < rows; ++r) {
      const int64_t source = row + (r < tile.num_rows ? r : tile.num_rows - 1);
      tile.row[r] = data + source * bytes;
      if constexpr (F == WeightFormat::kMxfp4) tile.scale[r] = p.scale + source * (p.cols / kGroup);
    }
    for (int64_t t = 0; t < p.num_tokens; ++t) tile.y[t] = p.y[t] + (row - p.row_begin);
    tile.ahead = rows * bytes;
    if (rows == 8) {
      run_tile<F, 8, 1>(tile);
    } else {
      run_tile_of<F>(tile, p.num_tokens);
    }
    row += tile.num_rows;
  }
}

// At most kRowBlock rows and kTokenBlock tokens, whose columns [begin, begin + count) lie widened in `widened`.
TANDEM_INLINE void multiply_widened(const Product& p, const float* widened, int64_t begin, int64_t count,
                                    float* partial) {
  Tile tile;
  tile.cols = count;
  tile.resume = begin > 0;
  tile.park = begin + count < p.cols;
  for (int64_t t = 0; t < p.num_tokens; t += kTileTokens) {
    const int64_t tokens = p.num_tokens - t < kTileTokens ? p.num_tokens - t : kTileTokens;
    for (int64_t i = 0; i < tokens; ++i) tile.x[i] = p.x[t + i] + begin;
    for (int64_t row = p.row_begin; row < p.row_end; row += kTileRows) {
      const int64_t offset = row - p.row_begin;
      tile.num_rows = p.row_end - row < kTileRows ? p.row_end - row : kTileRows;
      for (int r = 0; r < kTileRows; ++r) {
        const int64_t source = offset + (r < tile.num_rows ? r : tile.num_rows - 1);
        tile.row[r] = reinterpret_cast<const char*>(widened + source * count);
      }
      for (int64_t i = 0; i < tokens; ++i) tile.y[i] = p.y[t + i] + offset;
      tile.partial = partial + (t * kRowBlock + offset * kTileTokens) * Vec::kLanes;
      run_tile_of<WeightFormat::kF32>(tile, tokens);
    }
  }
}

template <WeightFormat F>
void widen_and_multiply(const Product& p) {
  const int64_t bytes = row_bytes(F, p.cols);
  const char* data = static_cast<const char*>(p.data);
  float* widened = p.scratch;
  float* partial = p.scratch + kRowBlock * kColBlock;
  for (int64_t begin = 0; begin < p.cols; begin += kColBlock) {
    const int64_t count = p.cols - begin < kColBlock ? p.cols - begin : kColBlock;
    for (int64_t row = p.row_begin; row < p.row_end; ++row) {
      const uint8_t* scale = F == WeightFormat::kMxfp4 ? p.scale + row * (p.cols / kGroup) : nullptr;
      widen_columns<F>(data + row * bytes, scale, begin, count, widened + (row - p.row_begin) * count);
    }
    multiply_widened(p, widened, begin, count, partial);
  }
}

template <WeightFormat F>
TANDEM_INLINE void multiply_format(const Product& p) {
  if (p.num_tokens <= kTileTokens) {
    stream_rows<F>(p);
  } else {
    widen_and_multiply<F>(p);
  }
}

TANDEM_INLINE void multiply(WeightFormat format, const Product& p) {
  switch (format) {
    case WeightFormat::kF32: return multiply_format<WeightFormat::kF32>(p);
    case WeightFormat::kF16: return multiply_format<WeightFormat::kF16>(p);
    case WeightFormat::kBF16: return multiply_format<WeightFormat::kBF16>(p);
    case WeightFormat::kMxfp4: return multiply_format<WeightFormat::kMxfp4>(p);
  }
}

TANDEM_INLINE int64_t scratch_floats(int64_t cols, int64_t num_tokens) {
  if (num_tokens <= kTileTokens) return 0;
  const int64_t parked = cols > kColBlock ? kRowBlock * kTokenBlock * Vec::kLanes : 0;
  return kRowBlock * kColBlock + parked;
}

}  // namespace
}  // namespace tandem

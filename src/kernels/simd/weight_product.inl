// kernels/simd/weight_product.inl: kernels/simd/weight_product.h over Vec.
#include "kernels/simd/weight_product.h"
#include "kernels/simd/weight_tile.inl"

namespace tandem {
namespace {

constexpr int64_t kGroupRows = 8;
// Far enough for the latency of memory, near enough to stay in L2 with the rest.
constexpr int64_t kAheadBytes = 8192;
// Rows of widened scratch that stay in L1, beside the x of a tile, while all tokens pass.
constexpr int64_t kL1Rows = 16;

// Bytes from `row` to what is prefetched while its group runs: `ahead` rows further on, or as far into what comes next.
TANDEM_INLINE int64_t prefetch_offset(const Product& p, int64_t row, int64_t ahead, int64_t bytes) {
  const int64_t target = row + ahead;
  if (target < p.row_end) return ahead * bytes;
  const char* from = static_cast<const char*>(p.data) + row * bytes;
  return p.next == nullptr ? 0 : static_cast<const char*>(p.next) - from + (target - p.row_end) * bytes;
}

// Rows [row, row + count), count <= kGroupRows, for all tokens.
template <WeightFormat F>
TANDEM_INLINE void stream_group(const Product& p, Tile& tile, int64_t bytes, int64_t row, int64_t count) {
  const int64_t rows = tile_rows(static_cast<int>(p.num_tokens));
  for (int64_t begin = row; begin < row + count; begin += rows) {
    const int64_t left = row + count - begin;
    tile.num_rows = left < rows ? left : rows;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t source = begin + (r < tile.num_rows ? r : tile.num_rows - 1);
      tile.row[r] = static_cast<const char*>(p.data) + source * bytes;
      if constexpr (F == WeightFormat::kMxfp4) tile.scale[r] = p.scale + source * (p.cols / kGroup);
    }
    for (int64_t t = 0; t < p.num_tokens; ++t) tile.y[t] = p.y[t] + (begin - p.row_begin);
    run_tile_or_wider<F, false, 1>(tile, p.num_tokens);
  }
}

template <WeightFormat F>
void stream_rows(const Product& p) {
  const int64_t bytes = row_bytes(F, p.cols);
  const int64_t ahead = (kAheadBytes / bytes + kGroupRows) / kGroupRows * kGroupRows;
  Tile tile;
  tile.cols = p.cols;
  for (int64_t t = 0; t < p.num_tokens; ++t) tile.x[t] = p.x[t];
  for (int64_t row = p.row_begin; row < p.row_end; row += kGroupRows) {
    tile.ahead = prefetch_offset(p, row, ahead, bytes);
    tile.scale_ahead = row + ahead < p.row_end ? ahead * (p.cols / kGroup) : 0;
    stream_group<F>(p, tile, bytes, row, p.row_end - row < kGroupRows ? p.row_end - row : kGroupRows);
  }
}

// The tiles of one block of widened rows [row, row_end) and of tokens [t, t + tokens).
TANDEM_INLINE void multiply_rows(const Product& p, const float* widened, int64_t count, int64_t row, int64_t row_end,
                                 int64_t t, int64_t tokens, float* partial, Tile& tile) {
  const int64_t rows = tile_rows(static_cast<int>(tokens));
  for (; row < row_end; row += rows) {
    const int64_t offset = row - p.row_begin;
    tile.num_rows = row_end - row < rows ? row_end - row : rows;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t source = offset + (r < tile.num_rows ? r : tile.num_rows - 1);
      tile.row[r] = reinterpret_cast<const char*>(widened + source * count);
    }
    for (int64_t i = 0; i < tokens; ++i) tile.y[i] = p.y[t + i] + offset;
    tile.partial = partial + (t * kRowBlock + offset * tokens) * Vec::kLanes;
    run_tile_or_wider<WeightFormat::kF32, true, 1>(tile, tokens);
  }
}

// At most kRowBlock rows and kTokenBlock tokens, whose columns [begin, begin + count) lie widened in `widened`.
TANDEM_INLINE void multiply_widened(const Product& p, const float* widened, int64_t begin, int64_t count,
                                    float* partial) {
  Tile tile;
  tile.cols = count;
  tile.resume = begin > 0;
  tile.park = begin + count < p.cols;
  for (int64_t row = p.row_begin; row < p.row_end; row += kL1Rows) {
    const int64_t row_end = p.row_end - row < kL1Rows ? p.row_end : row + kL1Rows;
    for (int64_t t = 0; t < p.num_tokens; t += kTileTokens) {
      const int64_t tokens = p.num_tokens - t < kTileTokens ? p.num_tokens - t : kTileTokens;
      for (int64_t i = 0; i < tokens; ++i) tile.x[i] = p.x[t + i] + begin;
      multiply_rows(p, widened, count, row, row_end, t, tokens, partial, tile);
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
      const char* stored = data + row * bytes;
      const uint8_t* scale = nullptr;
      if constexpr (F == WeightFormat::kMxfp4) scale = p.scale + row * (p.cols / kGroup);
      widen_columns<F>(stored, scale, begin, count, widened + (row - p.row_begin) * count);
    }
    multiply_widened(p, widened, begin, count, partial);
  }
}

// Int8: sums over codes times the scales of their rows.
TANDEM_INLINE void scale_sums(const Product& p) {
  const auto* scales = p.scale + p.row_begin * static_cast<int64_t>(sizeof(float));
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    for (int64_t r = 0; r < p.row_end - p.row_begin; ++r) {
      p.y[t][r] *= load_scale(scales + r * static_cast<int64_t>(sizeof(float)));
    }
  }
}

template <WeightFormat F>
TANDEM_INLINE void multiply_format(const Product& p) {
  if (p.num_tokens <= kTileTokens) {
    stream_rows<F>(p);
  } else {
    widen_and_multiply<F>(p);
  }
  if constexpr (F == WeightFormat::kInt8) scale_sums(p);
}

TANDEM_INLINE void multiply(WeightFormat format, const Product& p) {
  switch (format) {
    case WeightFormat::kF32: return multiply_format<WeightFormat::kF32>(p);
    case WeightFormat::kF16: return multiply_format<WeightFormat::kF16>(p);
    case WeightFormat::kBF16: return multiply_format<WeightFormat::kBF16>(p);
    case WeightFormat::kMxfp4: return multiply_format<WeightFormat::kMxfp4>(p);
    case WeightFormat::kInt8: return multiply_format<WeightFormat::kInt8>(p);
  }
}

TANDEM_INLINE int64_t scratch_floats(int64_t cols, int64_t num_tokens) {
  if (num_tokens <= kTileTokens) return 0;
  const int64_t parked = cols > kColBlock ? kRowBlock * kTokenBlock * Vec::kLanes : 0;
  return kRowBlock * kColBlock + parked;
}

}  // namespace
}  // namespace tandem

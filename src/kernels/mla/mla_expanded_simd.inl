// kernels/mla/mla_expanded_simd.inl: the expanded form of mla.h over Vec, for prefill.
//
//   The context is walked in tiles of kTile tokens on a grid from position 0, in groups. Once per tile the latents are
//   transposed (columns × tokens) for all heads; a task then takes one head and a range of query rows, and for each
//   tile expands Kᵀ (nope × tokens) and V (tokens × v) once and runs every query row that sees the tile over it with an
//   online softmax. out holds the running Σ P·v; the running maximum and sum of each row live in scratch.
//   Online softmax: Milakov and Gimelshein 2018; tiling: FlashAttention.
#include "kernels/backend_entries.h"
#include "kernels/mla/mla_load_simd.inl"

namespace tandem {
namespace {

constexpr int64_t kTile = 64;        // tokens
constexpr int64_t kGroupTiles = 16;  // tiles transposed at once
constexpr int64_t kStageRows = 16;   // rows widened before they are transposed
static_assert(kTile % kTileWidth == 0 && kTile % kTileRows == 0 && kTile % kStageRows == 0);

struct Running {
  float largest;
  float sum;
};

struct ThreadScratch {
  float* stage;       // [kStageRows, max(width, rank)]
  float* w_key;       // [nope, rank]
  float* w_value;     // [rank, v_stride]  W_UVᵀ
  float* key;         // [nope, kTile]     Kᵀ
  float* value;       // [kTile, v_stride]
  float* weights;     // [kTileRows, kTile] scores, then probabilities
  float* correction;  // [kTileRows]
};

struct SegmentPass {
  const MlaArgs* args;
  const MlaSegment* segment;
  MlaShape shape;
  int64_t v_stride;      // v padded to whole tiles
  int64_t rank_stride;   // rank padded to whole registers
  int64_t stage_stride;  // a cached row padded to whole registers
  float* latents;        // [kGroupTiles, width, kTile] the group's tiles, transposed
  Running* running;      // [num_rows, heads]
  const float* mask;     // kTile zeros, then kTile times −infinity
};

// dst[c][r] = src[r][c]; r < rows
TANDEM_INLINE void transpose(const float* src, int64_t src_row, int64_t rows, int64_t cols, float* dst,
                             int64_t dst_row) {
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t r = 0; r < rows; ++r) dst[c * dst_row + r] = src[r * src_row + c];
  }
}

// Tokens past the cache's length become zeros: their memory is never read and their weight is 0.
void load_tile(const SegmentPass& pass, int64_t first_token, float* tile, float* stage) {
  const int64_t width = pass.shape.width();
  const PageTable table = page_table(pass.segment->latents, width);
  for (int64_t block = 0; block < kTile; block += kStageRows) {
    for (int64_t r = 0; r < kStageRows; ++r) {
      const int64_t token = first_token + block + r;
      float* row = stage + r * pass.stage_stride;
      if (token < pass.segment->latents.length) {
        widen(table.format, table.row(token), 0, width, row);
      } else {
        for (int64_t c = 0; c < width; ++c) row[c] = 0.f;
      }
    }
    transpose(stage, pass.stage_stride, kStageRows, width, tile + block, kTile);
  }
}

void load_head_weight(const SegmentPass& pass, int64_t h, const ThreadScratch& s) {
  const MlaShape& shape = pass.shape;
  const WeightView& weight = pass.args->kv_b;
  const WeightFormat format = weight.format;
  const int64_t first = h * (shape.nope + shape.v);
  for (int64_t r = 0; r < shape.nope; ++r) {
    widen(format, weight.data, (first + r) * shape.rank, shape.rank, s.w_key + r * pass.rank_stride);
  }
  for (int64_t r = 0; r < shape.v; r += kStageRows) {
    const int64_t rows = least(kStageRows, shape.v - r);
    for (int64_t i = 0; i < rows; ++i) {
      widen(format, weight.data, (first + shape.nope + r + i) * shape.rank, shape.rank,
            s.stage + i * pass.stage_stride);
    }
    transpose(s.stage, pass.stage_stride, rows, shape.rank, s.w_value + r, pass.v_stride);
  }
  for (int64_t c = 0; c < shape.rank; ++c) {
    for (int64_t j = shape.v; j < pass.v_stride; ++j) s.w_value[c * pass.v_stride + j] = 0.f;
  }
}

template <int kRows>
TANDEM_INLINE void product_rows(StridedMatrix a, const float* b, int64_t b_row, int64_t depth, int64_t cols, float* out,
                                int64_t out_row) {
  for (int64_t c = 0; c < cols; c += kTileWidth) {
    Vec acc[kRows][kTileCols];
    tile_zero(acc);
    tile_fma<kRows, true>(acc, a, b + c, b_row, depth, kTileWidth);
    tile_store<true>(acc, out + c, out_row, kTileWidth);
  }
}

// out[rows, cols] = A[rows, depth] · B[depth, cols]; cols is a multiple of kTileWidth.
void product(StridedMatrix a, int64_t rows, const float* b, int64_t b_row, int64_t depth, int64_t cols, float* out,
             int64_t out_row) {
  int64_t r = 0;
  for (; r + kTileRows <= rows; r += kTileRows) {
    product_rows<kTileRows>({a.data + r * a.row, a.row, a.col}, b, b_row, depth, cols, out + r * out_row, out_row);
  }
  for (; r < rows; ++r) {
    product_rows<1>({a.data + r * a.row, a.row, a.col}, b, b_row, depth, cols, out + r * out_row, out_row);
  }
}

void expand_tile(const SegmentPass& pass, const float* latents, const ThreadScratch& s) {
  const MlaShape& shape = pass.shape;
  product({s.w_key, pass.rank_stride, 1}, shape.nope, latents, kTile, shape.rank, kTile, s.key, kTile);
  product({latents, 1, kTile}, kTile, s.w_value, pass.v_stride, shape.rank, pass.v_stride, s.value, pass.v_stride);
}

// Scores of one row over the tile to weights exp(score − largest); tokens from `visible` on weigh 0.
TANDEM_INLINE void soften(float* scores, const float* mask, int64_t visible, float scale, Running& running,
                          float* correction) {
  const float* hidden = mask + kTile - visible;
  const Vec minus_infinity = simd::broadcast(-__builtin_inff());
  Vec largest = minus_infinity;
  for (int64_t c = 0; c < kTile; c += kLanes) {
    const Vec score = simd::broadcast(scale) * simd::load(scores + c);
    const Vec masked = simd::select(simd::less(simd::load(hidden + c), simd::zero()), minus_infinity, score);
    simd::store(scores + c, masked);
    largest = simd::max(masked, largest);
  }
  const float tile_largest = simd::reduce_max(largest);
  const float updated = tile_largest > running.largest ? tile_largest : running.largest;
  Vec total = simd::zero();
  for (int64_t c = 0; c < kTile; c += kLanes) {
    const Vec weight = simd::exp(simd::load(scores + c) - simd::broadcast(updated));
    simd::store(scores + c, weight);
    total = total + weight;
  }
  simd::store_partial(correction, simd::exp(simd::broadcast(running.largest - updated)), 1);
  running.sum = running.sum * *correction + simd::sum(total);
  running.largest = updated;
}

template <int kRows, bool kFull>
TANDEM_INLINE void add_values(float* out, int64_t out_row, int64_t depth, bool first_tile, int64_t column, int64_t cols,
                              int64_t v_stride, const ThreadScratch& s) {
  Vec acc[kRows][kTileCols];
  tile_zero(acc);
  if (!first_tile) {
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kTileCols; ++c) {
        acc[r][c] = simd::broadcast(s.correction[r]) *
                    load_cols<kFull>(out + r * out_row + column + c * kLanes, cols - c * kLanes);
      }
    }
  }
  tile_fma<kRows, true>(acc, {s.weights, kTile, 1}, s.value + column, v_stride, depth, kTileWidth);
  tile_store<kFull>(acc, out + column, out_row, cols);
}

// kRows query rows from row i of the segment over the tile at first_token.
template <int kRows>
void attend_rows(const SegmentPass& pass, int64_t h, int64_t i, int64_t first_token, const float* latents,
                 const ThreadScratch& s) {
  const MlaShape& shape = pass.shape;
  const MlaArgs& args = *pass.args;
  const int64_t t = pass.segment->row_begin + i;
  const int64_t position = pass.segment->latents.length - pass.segment->num_rows + i;
  const float* q = args.q.data + t * args.q.stride[0] + h * args.q.stride[1];
  for (int64_t c = 0; c < kTile; c += kTileWidth) {
    Vec acc[kRows][kTileCols];
    tile_zero(acc);
    tile_fma<kRows, true>(acc, {q, args.q.stride[0], 1}, s.key + c, kTile, shape.nope, kTileWidth);
    tile_fma<kRows, true>(acc, {q + shape.nope, args.q.stride[0], 1}, latents + shape.rank * kTile + c, kTile,
                          shape.rope, kTileWidth);
    tile_store<true>(acc, s.weights + c, kTile, kTileWidth);
  }
  int64_t depth = 0;
  for (int r = 0; r < kRows; ++r) {
    const int64_t visible = least(kTile, position + r + 1 - first_token);
    soften(s.weights + r * kTile, pass.mask, visible, args.scale, pass.running[(i + r) * shape.heads + h],
           s.correction + r);
    depth = visible;  // rows see no less than the one before
  }
  float* out = args.out.data + t * args.out.stride[0] + h * args.out.stride[1];
  int64_t column = 0;
  for (; column + kTileWidth <= shape.v; column += kTileWidth) {
    add_values<kRows, true>(out, args.out.stride[0], depth, first_token == 0, column, kTileWidth, pass.v_stride, s);
  }
  if (column < shape.v) {
    add_values<kRows, false>(out, args.out.stride[0], depth, first_token == 0, column, shape.v - column, pass.v_stride,
                             s);
  }
}

struct RowRange {
  int64_t begin, end;
};

// One head, query rows `range`, tiles [first_tile, first_tile + num_tiles).
void attend_group(const SegmentPass& pass, int64_t h, RowRange range, int64_t first_tile, int64_t num_tiles,
                  const ThreadScratch& s) {
  const int64_t past = pass.segment->latents.length - pass.segment->num_rows;  // tokens before the segment's rows
  load_head_weight(pass, h, s);
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const int64_t first_token = (first_tile + tile) * kTile;
    int64_t i = first_token - past > range.begin ? first_token - past : range.begin;  // the first row that sees it
    if (i >= range.end) return;
    const float* latents = pass.latents + tile * pass.shape.width() * kTile;
    expand_tile(pass, latents, s);
    for (; i + kTileRows <= range.end; i += kTileRows) attend_rows<kTileRows>(pass, h, i, first_token, latents, s);
    for (; i < range.end; ++i) attend_rows<1>(pass, h, i, first_token, latents, s);
  }
}

void divide_by_sum(const SegmentPass& pass, int64_t h, RowRange range) {
  const MlaArgs& args = *pass.args;
  for (int64_t i = range.begin; i < range.end; ++i) {
    float* out = args.out.data + (pass.segment->row_begin + i) * args.out.stride[0] + h * args.out.stride[1];
    const Vec sum = simd::broadcast(pass.running[i * pass.shape.heads + h].sum);
    for (int64_t c = 0; c < pass.shape.v; c += kLanes) {
      const int64_t left = lanes_left(pass.shape.v - c);
      simd::store_partial(out + c, simd::load_partial(out + c, left) / sum, left);
    }
  }
}

TANDEM_INLINE int64_t thread_scratch_floats(const MlaShape& shape, const SegmentPass& pass) {
  return kStageRows * pass.stage_stride + shape.nope * pass.rank_stride + shape.rank * pass.v_stride +
         shape.nope * kTile + kTile * pass.v_stride + kTileRows * kTile + 16;
}
TANDEM_INLINE ThreadScratch make_thread_scratch(float* p, const SegmentPass& pass) {
  ThreadScratch s{};
  s.stage = p;
  s.w_key = s.stage + kStageRows * pass.stage_stride;
  s.w_value = s.w_key + pass.shape.nope * pass.rank_stride;
  s.key = s.w_value + pass.shape.rank * pass.v_stride;
  s.value = s.key + pass.shape.nope * kTile;
  s.weights = s.value + kTile * pass.v_stride;
  s.correction = s.weights + kTileRows * kTile;
  return s;
}

// Heads alone fill the threads, or the query rows of a head are split among several tasks.
TANDEM_INLINE int64_t row_splits(int64_t heads, int64_t rows, int64_t threads) {
  const int64_t wanted = (threads + heads - 1) / heads;
  const int64_t possible = (rows + kTile - 1) / kTile;
  return least(wanted, possible);
}

void run_segment(const ExecContext& ctx, SegmentPass& pass, float* scratch, int64_t scratch_size) {
  const int64_t heads = pass.shape.heads;
  const int64_t rows = pass.segment->num_rows;
  const int64_t num_tiles = (pass.segment->latents.length + kTile - 1) / kTile;
  const int64_t splits = row_splits(heads, rows, ctx.pool.num_threads());
  for (int64_t i = 0; i < rows * heads; ++i) pass.running[i] = {-__builtin_inff(), 0.f};
  for (int64_t first = 0; first < num_tiles; first += kGroupTiles) {
    const int64_t count = least(kGroupTiles, num_tiles - first);
    ctx.pool.parallel_for(count, [&](int64_t tile, int thread) {
      load_tile(pass, (first + tile) * kTile, pass.latents + tile * pass.shape.width() * kTile,
                scratch + thread * scratch_size);
    });
    ctx.pool.parallel_for(heads * splits, [&](int64_t task, int thread) {
      const int64_t h = task / splits;
      const int64_t split = task % splits;
      const RowRange range{rows * split / splits, rows * (split + 1) / splits};
      attend_group(pass, h, range, first, count, make_thread_scratch(scratch + thread * scratch_size, pass));
      if (first + count == num_tiles) divide_by_sum(pass, h, range);
    });
  }
}

void run_mla_expanded(const ExecContext& ctx, const MlaArgs& args) {
  SegmentPass pass{};
  pass.args = &args;
  pass.shape = mla_shape(args);
  pass.v_stride = round_up(pass.shape.v, kTileWidth);
  pass.rank_stride = round_up(pass.shape.rank, kLanes);
  pass.stage_stride = round_up(pass.shape.width(), kLanes);
  const int64_t scratch_size = round_up(thread_scratch_floats(pass.shape, pass), 16);
  simd::Scratch memory(ctx.arena);
  float* scratch = memory.floats(scratch_size * ctx.pool.num_threads());
  float* mask = memory.floats(2 * kTile);
  for (int64_t i = 0; i < 2 * kTile; ++i) mask[i] = i < kTile ? 0.f : -__builtin_inff();
  pass.mask = mask;
  const MlaSegment* segments = args.segments.data();
  const auto num_segments = static_cast<int64_t>(args.segments.size());
  for (int64_t i = 0; i < num_segments; ++i) {
    if (segments[i].num_rows == 0) continue;
    simd::Scratch segment_memory(ctx.arena);
    const int64_t tiles = least(kGroupTiles, (segments[i].latents.length + kTile - 1) / kTile);
    pass.segment = &segments[i];
    pass.latents = segment_memory.floats(tiles * pass.shape.width() * kTile);
    pass.running = static_cast<Running*>(
        segment_memory.bytes(segments[i].num_rows * pass.shape.heads * static_cast<int64_t>(sizeof(Running))));
    run_segment(ctx, pass, scratch, scratch_size);
  }
}

}  // namespace
}  // namespace tandem

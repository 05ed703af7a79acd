// kernels/kda/kda_chunked_simd.inl: the chunk equations of kda.h over Vec. A task is one head of one segment, or some
// of its columns when there are fewer heads than threads.
//
//   kGroupChunks chunks are prepared at once (kda_chunk_simd.inl) and stay in the L2 cache. Then each block of state
//   columns is copied into a buffer that stays in the L1 cache and is carried through all of them: read by the decayed
//   keys, solved by substitution in registers, read by the decayed queries, updated. Columns are independent.
#include "kernels/backend_entries.h"
#include "kernels/kda/kda_chunk_simd.inl"

namespace tandem {
namespace {

constexpr int64_t kGroupChunks = 8;

struct Columns {
  int64_t h;
  int64_t column;  // first
  int64_t count;   // of kTileWidth
  float* state;    // [stride, kTileWidth], zeros where the head has no cell
  float* u;        // [C, kTileWidth]
};

TANDEM_INLINE void load_state(const float* S, int64_t key_dim, int64_t value_dim, int64_t stride, const Columns& x) {
  for (int64_t i = 0; i < stride; ++i) {
    for (int c = 0; c < kTileCols; ++c) {
      const int64_t left = i < key_dim ? lanes_left(x.count - c * kLanes) : 0;
      const float* cell = S + i * value_dim + x.column + c * kLanes;
      Vec value = simd::zero();
      if (left == kLanes) {
        value = simd::load(cell);
      } else if (left > 0) {
        value = simd::load_partial(cell, left);
      }
      simd::store(x.state + i * kTileWidth + c * kLanes, value);
    }
  }
}

TANDEM_INLINE void store_state(float* S, int64_t key_dim, int64_t value_dim, const Columns& x) {
  for (int64_t i = 0; i < key_dim; ++i) {
    for (int c = 0; c < kTileCols; ++c) {
      const int64_t left = lanes_left(x.count - c * kLanes);
      float* cell = S + i * value_dim + x.column + c * kLanes;
      const Vec value = simd::load(x.state + i * kTileWidth + c * kLanes);
      if (left == kLanes) {
        simd::store(cell, value);
      } else if (left > 0) {
        simd::store_partial(cell, value, left);
      }
    }
  }
}

// The three functions below stay out of line: inlined together they leave their inner loops too few registers.

// U = R − L U by forward substitution, kTileRows rows at a time: R, what earlier tiles add, then the tile's own rows.
template <bool kFull>
[[gnu::noinline]] void solve(const KdaArgs& args, const Chunk& chunk, int64_t stride, const Columns& x) {
  for (int64_t b = 0; b < chunk.num_rows; b += kTileRows) {
    Vec acc[kTileRows][kTileCols];
    tile_zero(acc);
    tile_fma<kTileRows, true>(acc, {chunk.decayed + b * stride, stride, 1}, x.state, kTileWidth, stride, kTileWidth);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const Vec beta = simd::broadcast(chunk.beta[b + r]);
      const bool present = b + r < chunk.num_rows;
      for (int c = 0; c < kTileCols; ++c) {
        const int64_t left = x.count - c * kLanes;
        const float* v = head_row(args.v, chunk.row_begin + b + r, x.h) + x.column + c * kLanes;
        acc[r][c] = beta * ((present ? load_cols<kFull>(v, left) : simd::zero()) - acc[r][c]);
      }
    }
    tile_fma<kTileRows, true>(acc, {chunk.lower + b * kC, kC, 1}, x.u, kTileWidth, b, kTileWidth);
    const float* own = chunk.lower + b * kC + b;
#pragma GCC unroll 8
    for (int j = 0; j + 1 < kTileRows; ++j) {
#pragma GCC unroll 8
      for (int r = j + 1; r < kTileRows; ++r) {
        const Vec l = simd::broadcast(own[r * kC + j]);
        for (int c = 0; c < kTileCols; ++c) acc[r][c] = simd::fma(l, acc[j][c], acc[r][c]);
      }
    }
    tile_store<true>(acc, x.u + b * kTileWidth, kTileWidth, kTileWidth);
  }
}

template <bool kFull>
[[gnu::noinline]] void read_out(const KdaArgs& args, const Chunk& chunk, int64_t stride, const Columns& x) {
  const Vec scale = simd::broadcast(args.scale);
  for (int64_t b = 0; b < chunk.num_rows; b += kTileRows) {
    Vec acc[kTileRows][kTileCols];
    tile_zero(acc);
    tile_fma<kTileRows, true>(acc, {chunk.decayed + (kC + b) * stride, stride, 1}, x.state, kTileWidth, stride,
                              kTileWidth);
    tile_fma<kTileRows, true>(acc, {chunk.scores + b * kC, kC, 1}, x.u, kTileWidth, b, kTileWidth);
    // The tile's own triangle, and nothing above it: a row that is not finite stays out of the rows before it.
    const float* own = chunk.scores + b * kC + b;
#pragma GCC unroll 8
    for (int j = 0; j < kTileRows; ++j) {
      Vec u[kTileCols];
      for (int c = 0; c < kTileCols; ++c) u[c] = simd::load(x.u + (b + j) * kTileWidth + c * kLanes);
#pragma GCC unroll 8
      for (int r = j; r < kTileRows; ++r) {
        const Vec m = simd::broadcast(own[r * kC + j]);
        for (int c = 0; c < kTileCols; ++c) acc[r][c] = simd::fma(m, u[c], acc[r][c]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      if (b + r >= chunk.num_rows) continue;
      float* out = head_row(args.out, chunk.row_begin + b + r, x.h) + x.column;
      for (int c = 0; c < kTileCols; ++c) {
        store_cols<kFull>(out + c * kLanes, scale * acc[r][c], x.count - c * kLanes);
      }
    }
  }
}

// S[c] = Γ_C[c] S[c] + Σ_i suffix_i[c] U_i
[[gnu::noinline]] void update_state(const Chunk& chunk, int64_t stride, const Columns& x) {
  for (int64_t c = 0; c < stride; c += kTileRows) {
    Vec acc[kTileRows][kTileCols];
    float* S = x.state + c * kTileWidth;
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const Vec total = simd::broadcast(chunk.total[c + r]);
      for (int v = 0; v < kTileCols; ++v) acc[r][v] = total * simd::load(S + r * kTileWidth + v * kLanes);
    }
    tile_fma<kTileRows, true>(acc, {chunk.suffix + c, 1, stride}, x.u, kTileWidth, chunk.num_rows, kTileWidth);
    tile_store<true>(acc, S, kTileWidth, kTileWidth);
  }
}

// Rows of the next group asked for while this one is computed: a head's part of a row is a few lines, rows are pages
// apart, and no hardware prefetcher follows that.
struct Ahead {
  int64_t row, end;   // what is left of the next group
  int64_t per_chunk;  // rows a chunk and block of columns
};

TANDEM_INLINE void prefetch_floats(const float* p, int64_t count) {
  for (int64_t c = 0; c < count; c += 16) __builtin_prefetch(p + c, 0, 2);
}

TANDEM_INLINE void prefetch_rows(const KdaArgs& args, int64_t h, Ahead& ahead) {
  const KdaShape shape = kda_shape(args);
  for (int64_t i = 0; i < ahead.per_chunk && ahead.row < ahead.end; ++i, ++ahead.row) {
    prefetch_floats(head_row(args.g, ahead.row, h), shape.key_dim);
    prefetch_floats(head_row(args.k, ahead.row, h), shape.key_dim);
    prefetch_floats(head_row(args.q, ahead.row, h), shape.key_dim);
    prefetch_floats(head_row(args.v, ahead.row, h), shape.value_dim);
  }
}

template <bool kFull>
void chunk_columns(const KdaArgs& args, const Chunk* chunks, int64_t num_chunks, int64_t stride, const Columns& x,
                   Ahead& ahead) {
  for (int64_t i = 0; i < num_chunks; ++i) {
    prefetch_rows(args, x.h, ahead);
    solve<kFull>(args, chunks[i], stride, x);
    read_out<kFull>(args, chunks[i], stride, x);
    update_state(chunks[i], stride, x);
  }
}

struct ThreadScratch {
  ChunkInputs inputs;
  Chunk chunks[kGroupChunks];
  float* state;
  float* u;
};

TANDEM_INLINE int64_t thread_scratch_floats(int64_t stride) {
  return chunk_input_floats(stride) + kGroupChunks * chunk_floats(stride) + (stride + kC) * kTileWidth;
}
TANDEM_INLINE void make_thread_scratch(float* p, int64_t stride, ThreadScratch& s) {
  s.state = p;
  s.u = s.state + stride * kTileWidth;
  s.inputs = make_chunk_inputs(s.u + kC * kTileWidth, stride);
  float* chunk = s.inputs.decay + chunk_input_floats(stride);
  for (int64_t i = 0; i < kGroupChunks; ++i) s.chunks[i] = make_chunk(chunk + i * chunk_floats(stride), stride);
}

// Columns [begin, end) of one head of a segment. A last row alone is the recurrent step.
void run_head(const KdaArgs& args, const KdaSegment& segment, int64_t h, int64_t begin, int64_t end, ThreadScratch& s) {
  const KdaShape shape = kda_shape(args);
  const int64_t stride = s.inputs.stride;
  float* S = segment.state + h * shape.key_dim * shape.value_dim;
  const int64_t in_chunks = segment.num_rows % kC == 1 ? segment.num_rows - 1 : segment.num_rows;
  const int64_t first_end = least(kGroupChunks * kC, in_chunks);
  Ahead ahead{segment.row_begin, segment.row_begin + first_end, first_end};
  prefetch_rows(args, h, ahead);
  for (int64_t done = 0; done < in_chunks; done += kGroupChunks * kC) {
    int64_t count = 0;
    for (int64_t first = done; first < in_chunks && count < kGroupChunks; first += kC) {
      Chunk& chunk = s.chunks[count++];
      chunk.row_begin = segment.row_begin + first;
      chunk.num_rows = least(kC, in_chunks - first);
      prepare_chunk(args, h, s.inputs, chunk);
    }
    const int64_t next = segment.row_begin + done + count * kC;
    const int64_t steps = count * ((end - begin + kTileWidth - 1) / kTileWidth);
    ahead = {next, least(next + kGroupChunks * kC, segment.row_begin + in_chunks), 0};
    ahead.per_chunk = (ahead.end - next + steps - 1) / steps;
    for (int64_t column = begin; column < end; column += kTileWidth) {
      const Columns x{h, column, least(kTileWidth, end - column), s.state, s.u};
      load_state(S, shape.key_dim, shape.value_dim, stride, x);
      if (x.count == kTileWidth) {
        chunk_columns<true>(args, s.chunks, count, stride, x, ahead);
      } else {
        chunk_columns<false>(args, s.chunks, count, stride, x, ahead);
      }
      store_state(S, shape.key_dim, shape.value_dim, x);
    }
  }
  if (in_chunks < segment.num_rows) {
    step_rows(args, segment.row_begin + in_chunks, 1, h, S, begin, end, s.inputs.decay);
  }
}

// How many tasks share a head: one, unless heads alone leave threads idle. Each prepares the chunks again.
TANDEM_INLINE int64_t column_splits(int64_t heads, int64_t blocks, int64_t threads) {
  int64_t splits = 1;
  while (heads * splits < threads && 2 * splits <= blocks) splits *= 2;
  return splits;
}

void run_kda_chunked(const ExecContext& ctx, const KdaArgs& args) {
  const KdaShape shape = kda_shape(args);
  const int64_t stride = round_up(shape.key_dim, kLanes);
  const int64_t scratch_size = round_up(thread_scratch_floats(stride), 16);
  simd::Scratch memory(ctx.arena);
  float* scratch = memory.floats(scratch_size * ctx.pool.num_threads());
  const KdaSegment* segments = args.segments.data();
  const auto num_segments = static_cast<int64_t>(args.segments.size());
  const int64_t blocks = (shape.value_dim + kTileWidth - 1) / kTileWidth;
  const int64_t splits = column_splits(num_segments * shape.heads, blocks, ctx.pool.num_threads());
  ctx.pool.parallel_for(num_segments * shape.heads * splits, [&](int64_t task, int thread) {
    const int64_t head = task / splits;
    const int64_t split = task % splits;
    const int64_t begin = blocks * split / splits * kTileWidth;
    const int64_t end = least(shape.value_dim, blocks * (split + 1) / splits * kTileWidth);
    ThreadScratch s{};
    make_thread_scratch(scratch + thread * scratch_size, stride, s);
    run_head(args, segments[head / shape.heads], head % shape.heads, begin, end, s);
  });
}

}  // namespace
}  // namespace tandem

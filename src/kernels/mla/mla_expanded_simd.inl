// kernels/mla/mla_expanded_simd.inl: the expanded form of mla.h over Vec, for prefill.
//
//   One loop over the threads: a task takes one head, or a share of its rows when there are fewer heads than threads,
//   and walks all segments. The head's weights are transposed once into panels, the queries of a segment too. For each
//   tile of cached rows, on a grid from position 0, keys and values [tokens, nope + v] come out of one product over the
//   latents, and every panel of query rows that sees the tile runs over it (mla_attend_simd.inl). out holds the running
//   Σ P·v until the last tile; a row's running maximum and sum live in scratch.
#include "kernels/backend_entries.h"
#include "kernels/mla/mla_attend_simd.inl"

namespace tandem {
namespace {

constexpr int64_t kStageRows = 8;  // weight rows widened before they are transposed
static_assert(kTileWidth % kStageRows == 0);

struct Pass {
  const MlaArgs* args;
  MlaShape shape;
  int64_t key_stride;    // nope in whole panels
  int64_t value_stride;  // v in whole panels
  int64_t stage_stride;  // a cached row, or a weight row, in whole registers
  int64_t max_rows;      // of a task's share of a segment, in whole panels

  int64_t qk() const { return shape.nope + shape.rope; }
  int64_t expanded_stride() const { return key_stride + value_stride; }
};

struct ThreadScratch {
  float* stage;       // [kTile, stage_stride]
  float* weight;      // panels of [rank, kTileWidth]: W_UKᵀ, then W_UVᵀ
  float* expanded;    // [kTile, key_stride + value_stride]: keys, then values
  float* query;       // panels of [qk, kTileWidth]
  float* largest;     // [max_rows]
  float* sum;         // [max_rows]
  float* weights;     // [kTile, kTileWidth]
  float* correction;  // [kTileWidth]
  float* visible;     // [kTileWidth]
};

// Weight rows [first, first + rows) of kv_b transposed into panels of [rank, kTileWidth]; lanes past the last are
// zeros.
void load_weight_panels(const Pass& pass, int64_t first, int64_t rows, float* panels, float* stage) {
  const int64_t rank = pass.shape.rank;
  const WeightView& weight = pass.args->kv_b;
  for (int64_t r = 0; r < rows; r += kStageRows) {
    const int64_t count = least(kStageRows, rows - r);
    for (int64_t i = 0; i < count; ++i) {
      widen(weight.format, weight.data, (first + r + i) * rank, rank, stage + i * pass.stage_stride);
    }
    float* panel = panels + r / kTileWidth * kTileWidth * rank + r % kTileWidth;
    transpose(stage, pass.stage_stride, count, rank, panel, kTileWidth);
  }
  if (rows % kTileWidth == 0) return;
  float* last = panels + rows / kTileWidth * kTileWidth * rank;
  for (int64_t c = 0; c < rank; ++c) {
    for (int64_t i = rows % kTileWidth; i < kTileWidth; ++i) last[c * kTileWidth + i] = 0.f;
  }
}

void load_head_weight(const Pass& pass, int64_t h, const ThreadScratch& s) {
  const MlaShape& shape = pass.shape;
  const int64_t first = h * (shape.nope + shape.v);
  load_weight_panels(pass, first, shape.nope, s.weight, s.stage);
  load_weight_panels(pass, first + shape.nope, shape.v, s.weight + pass.key_stride * shape.rank, s.stage);
}

template <int kRows>
TANDEM_INLINE void expand_rows(const Pass& pass, const KeyPart& latents, int64_t s, const float* panel, float* out) {
  Vec acc[kRows][kTileCols];
  tile_zero(acc);
  tile_fma<kRows, true>(acc, {latents.data + s * latents.row, latents.row, 1}, panel, kTileWidth, pass.shape.rank,
                        kTileWidth);
  tile_store<true>(acc, out + s * pass.expanded_stride(), pass.expanded_stride(), kTileWidth);
}

// Keys and values of a tile. The last step ends on the last token: what it computes twice comes out the same.
void expand_tile(const Pass& pass, const KeyPart& latents, int64_t count, const ThreadScratch& s) {
  for (int64_t column = 0; column < pass.expanded_stride(); column += kTileWidth) {
    const float* panel = s.weight + column * pass.shape.rank;
    float* out = s.expanded + column;
    if (count < kTileRows) {
      for (int64_t i = 0; i < count; ++i) expand_rows<1>(pass, latents, i, panel, out);
      continue;
    }
    for (int64_t i = 0; i < count; i += kTileRows) {
      expand_rows<kTileRows>(pass, latents, least(i, count - kTileRows), panel, out);
    }
  }
}

// `queries` rows of the head, the first at `position` and writing to out, over the tile of `count` tokens at
// first_token.
template <int kCols>
void attend_panel(const Pass& pass, const KeyPart& latents, int64_t first_token, int64_t count, int64_t position,
                  int64_t queries, const Panel& panel, float* out, const ThreadScratch& s) {
  const MlaShape& shape = pass.shape;
  const int64_t stride = pass.expanded_stride();
  const int64_t seen = least(count, position + queries - first_token);  // by the last row
  score_tile<kCols>({s.expanded, stride, shape.nope}, {latents.data + shape.rank, latents.row, shape.rope}, seen,
                    panel);
  const float* visible = nullptr;
  if (position - first_token >= seen - 1) {
    soften<kCols, false>(seen, pass.args->scale, nullptr, panel);
  } else {
    for (int64_t i = 0; i < kCols * kLanes; ++i) s.visible[i] = static_cast<float>(position + i - first_token);
    soften<kCols, true>(seen, pass.args->scale, s.visible, panel);
    visible = s.visible;
  }
  gather_values({s.expanded + pass.key_stride, stride, shape.v}, seen, queries, visible, panel, out,
                pass.args->out.stride[0]);
}

// Every panel of the head's rows `range` that sees the tile.
void attend_tile(const Pass& pass, const MlaSegment& segment, int64_t h, RowRange range, const KeyPart& latents,
                 int64_t first_token, int64_t count, const ThreadScratch& s) {
  const MlaArgs& args = *pass.args;
  const int64_t past = segment.latents.length - segment.num_rows;  // tokens before the segment's rows
  for (int64_t i = range.begin; i < range.end; i += kTileWidth) {
    const int64_t queries = least(kTileWidth, range.end - i);
    if (past + i + queries <= first_token) continue;
    const int64_t at = i - range.begin;
    const Panel panel{s.query + at * pass.qk(), s.largest + at, s.sum + at, s.weights, s.correction, first_token == 0};
    float* out = args.out.data + (segment.row_begin + i) * args.out.stride[0] + h * args.out.stride[1];
    if (queries > kLanes) {
      attend_panel<kTileCols>(pass, latents, first_token, count, past + i, queries, panel, out, s);
    } else {
      attend_panel<1>(pass, latents, first_token, count, past + i, queries, panel, out, s);
    }
  }
}

void divide_by_sum(const Pass& pass, const MlaSegment& segment, int64_t h, RowRange range, const float* sums) {
  const MlaArgs& args = *pass.args;
  for (int64_t i = range.begin; i < range.end; ++i) {
    float* out = args.out.data + (segment.row_begin + i) * args.out.stride[0] + h * args.out.stride[1];
    const Vec sum = simd::broadcast(sums[i - range.begin]);
    for (int64_t c = 0; c < pass.shape.v; c += kLanes) {
      const int64_t left = lanes_left(pass.shape.v - c);
      simd::store_partial(out + c, simd::load_partial(out + c, left) / sum, left);
    }
  }
}

// The head's rows `range` of a segment over everything that they see.
void attend_segment(const Pass& pass, const MlaSegment& segment, int64_t h, RowRange range, const ThreadScratch& s) {
  const MlaArgs& args = *pass.args;
  const PageTable table = page_table(segment.latents, pass.shape.width());
  for (int64_t i = range.begin; i < range.end; i += kTileWidth) {
    const float* q = args.q.data + (segment.row_begin + i) * args.q.stride[0] + h * args.q.stride[1];
    load_panel(q, args.q.stride[0], least(kTileWidth, range.end - i), pass.qk(),
               s.query + (i - range.begin) * pass.qk());
  }
  const int64_t end = segment.latents.length - segment.num_rows + range.end;  // what the last row sees
  for (int64_t first = 0; first < end; first += kTile) {
    const int64_t count = least(kTile, end - first);
    const KeyPart latents = load_tile(table, pass.shape.width(), first, count, s.stage, pass.stage_stride);
    expand_tile(pass, latents, count, s);
    attend_tile(pass, segment, h, range, latents, first, count, s);
  }
  divide_by_sum(pass, segment, h, range, s.sum);
}

TANDEM_INLINE int64_t thread_scratch_floats(const Pass& pass) {
  return kTile * pass.stage_stride + pass.expanded_stride() * (pass.shape.rank + kTile) +
         pass.max_rows * (pass.qk() + 2) + (kTile + 2) * kTileWidth;
}
TANDEM_INLINE ThreadScratch make_thread_scratch(float* p, const Pass& pass) {
  ThreadScratch s{};
  s.weights = p;
  s.correction = s.weights + kTile * kTileWidth;
  s.visible = s.correction + kTileWidth;
  s.expanded = s.visible + kTileWidth;
  s.weight = s.expanded + kTile * pass.expanded_stride();
  s.stage = s.weight + pass.expanded_stride() * pass.shape.rank;
  s.largest = s.stage + kTile * pass.stage_stride;
  s.sum = s.largest + pass.max_rows;
  s.query = s.sum + pass.max_rows;
  return s;
}

void run_mla_expanded(const ExecContext& ctx, const MlaArgs& args) {
  const MlaSegment* segments = args.segments.data();
  const auto num_segments = static_cast<int64_t>(args.segments.size());
  int64_t most_rows = 0;
  for (int64_t i = 0; i < num_segments; ++i) {
    if (segments[i].num_rows > most_rows) most_rows = segments[i].num_rows;
  }
  Pass pass{};
  pass.args = &args;
  pass.shape = mla_shape(args);
  pass.key_stride = round_up(pass.shape.nope, kTileWidth);
  pass.value_stride = round_up(pass.shape.v, kTileWidth);
  pass.stage_stride = round_up(pass.shape.width(), kLanes);
  // Heads alone fill the threads, or the rows of every segment are split among several tasks a head.
  const int64_t splits = (ctx.pool.num_threads() + pass.shape.heads - 1) / pass.shape.heads;
  pass.max_rows = round_up((most_rows + splits - 1) / splits, kTileWidth);
  const int64_t scratch_size = round_up(thread_scratch_floats(pass), 16);
  simd::Scratch memory(ctx.arena);
  float* scratch = memory.floats(scratch_size * ctx.pool.num_threads());
  ctx.pool.parallel_for(pass.shape.heads * splits, [&](int64_t task, int thread) {
    const int64_t h = task / splits;
    const int64_t split = task % splits;
    const ThreadScratch s = make_thread_scratch(scratch + thread * scratch_size, pass);
    load_head_weight(pass, h, s);
    for (int64_t i = 0; i < num_segments; ++i) {
      const int64_t rows = segments[i].num_rows;
      const RowRange range{rows * split / splits, rows * (split + 1) / splits};
      if (range.begin < range.end) attend_segment(pass, segments[i], h, range, s);
    }
  });
}

}  // namespace
}  // namespace tandem

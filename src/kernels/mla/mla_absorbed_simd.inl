// kernels/mla/mla_absorbed_simd.inl: the absorbed form of mla.h over Vec, for decode.
//
//   Three loops over the threads: q̃ of every row and head; attention over the latents, where a task takes one row, some
//   panels of heads and one part of the context; the parts merged and W_UV applied.
//
//   Heads lie in lanes: a panel holds up to kTileWidth of them, q̃ is transposed once a task, and a tile of kTile
//   tokens, read once for all panels of the task, gives scores [tokens, heads] = L q̃ᵀ and Σ P·c [heads, rank] = Pᵀ L as
//   plain products over the latents as they are stored; a softmax over tokens needs no sum across lanes. Parts and
//   tiles lie on a grid from position 0 that depends on the row's position alone, so that neither the number of threads
//   nor the split into calls moves a rounding. Parts: flash-decoding (Dao et al. 2023); online softmax: Milakov and
//   Gimelshein 2018.
#include "kernels/backend_entries.h"
#include "kernels/mla/mla_attend_simd.inl"

namespace tandem {
namespace {

constexpr int64_t kPartTokens = 128;  // of the context, a task, at least
constexpr int64_t kMaxParts = 32;     // bounds the scratch at long contexts
static_assert(kPartTokens % kTile == 0);

struct Pass {
  const MlaArgs* args;
  MlaShape shape;
  int64_t query_stride;  // rank + rope in whole registers
  int64_t rank_stride;   // rank in whole registers
  int64_t head_stride;   // heads in whole panels
  int64_t max_parts;
  float* query;     // [T, heads, query_stride]  [ q̃ | q[nope:] | 0 ]
  float* attended;  // [T, max_parts, heads, rank_stride]  Σ exp(score − largest) c_s
  float* largest;   // [T, max_parts, head_stride]
  float* sum;       // [T, max_parts, head_stride]  Σ exp(score − largest)
};

// A query row and the context that it sees.
struct Row {
  int64_t t = 0;
  int64_t visible = 0;
  const MlaSegment* segment = nullptr;
};

struct ThreadScratch {
  float* query;       // panels of [width, kTileWidth] q̃ᵀ
  float* stage;       // [kTile, query_stride] latents that do not lie in memory as floats in one piece
  float* weights;     // [kTile, kTileWidth] scores, then exp(score − largest), of one panel
  float* correction;  // [kTileWidth]
};

TANDEM_INLINE int64_t part_tokens(int64_t visible) {
  int64_t tokens = kPartTokens;
  while (visible > tokens * kMaxParts) tokens *= 2;
  return tokens;
}
TANDEM_INLINE int64_t num_parts(int64_t visible) { return (visible + part_tokens(visible) - 1) / part_tokens(visible); }

// q̃[c] = Σ_n W_UK[n][c] q[n] for kRegisters registers of c.
template <WeightFormat F, int kRegisters, bool kFull>
TANDEM_INLINE void absorb_columns(const void* weight, int64_t first, int64_t rank, int64_t nope, const float* q,
                                  float* out, int64_t left) {
  Vec acc[kRegisters];
  for (int r = 0; r < kRegisters; ++r) acc[r] = simd::zero();
  for (int64_t n = 0; n < nope; ++n) {
    const Vec element = simd::broadcast(q[n]);
    for (int r = 0; r < kRegisters; ++r) {
      const int64_t index = first + n * rank + r * kLanes;
      const Vec w = kFull ? load_stored<F>(weight, index) : load_stored_partial<F>(weight, index, left);
      acc[r] = simd::fma(element, w, acc[r]);
    }
  }
  for (int r = 0; r < kRegisters; ++r) store_cols<kFull>(out + r * kLanes, acc[r], left);
}

template <WeightFormat F>
void absorb_query(const Pass& pass, int64_t t, int64_t h) {
  constexpr int kWide = 8;
  const MlaShape& shape = pass.shape;
  const MlaArgs& args = *pass.args;
  const float* q = args.q.data + t * args.q.stride[0] + h * args.q.stride[1];
  float* out = pass.query + (t * shape.heads + h) * pass.query_stride;
  const int64_t first = h * (shape.nope + shape.v) * shape.rank;
  int64_t c = 0;
  for (; c + kWide * kLanes <= shape.rank; c += kWide * kLanes) {
    absorb_columns<F, kWide, true>(args.kv_b.data, first + c, shape.rank, shape.nope, q, out + c, kLanes);
  }
  for (; c + kLanes <= shape.rank; c += kLanes) {
    absorb_columns<F, 1, true>(args.kv_b.data, first + c, shape.rank, shape.nope, q, out + c, kLanes);
  }
  if (c < shape.rank) {
    absorb_columns<F, 1, false>(args.kv_b.data, first + c, shape.rank, shape.nope, q, out + c, shape.rank - c);
  }
  for (int64_t i = 0; i < shape.rope; ++i) out[shape.rank + i] = q[shape.nope + i];
  for (int64_t i = shape.width(); i < pass.query_stride; ++i) out[i] = 0.f;
}

void absorb_query(const Pass& pass, WeightFormat format, int64_t t, int64_t h) {
  switch (format) {
    case WeightFormat::kF32: absorb_query<WeightFormat::kF32>(pass, t, h); return;
    case WeightFormat::kF16: absorb_query<WeightFormat::kF16>(pass, t, h); return;
    case WeightFormat::kBF16: absorb_query<WeightFormat::kBF16>(pass, t, h); return;
    case WeightFormat::kInt8:
    case WeightFormat::kMxfp4: return;  // refused by mla.cpp
  }
}

// The panel of heads from h over one tile.
template <int kCols>
void attend_tile(const Pass& pass, const KeyPart& latents, int64_t count, int64_t slot, int64_t h, bool first,
                 const ThreadScratch& s) {
  const MlaShape& shape = pass.shape;
  const int64_t at = slot * pass.head_stride + h;
  const Panel panel{s.query + h * shape.width(), pass.largest + at, pass.sum + at, s.weights, s.correction, first};
  score_tile<kCols>(latents, {nullptr, 0, 0}, count, panel);
  soften<kCols, false>(count, pass.args->scale, nullptr, panel);
  gather_values({latents.data, latents.row, shape.rank}, count, least(kCols * kLanes, shape.heads - h), nullptr, panel,
                pass.attended + (slot * shape.heads + h) * pass.rank_stride, pass.rank_stride);
}

// Heads [begin, end), whole panels, of one row over one part of its context.
void attend_part(const Pass& pass, const Row& row, int64_t begin, int64_t end, int64_t part, const ThreadScratch& s) {
  const MlaShape& shape = pass.shape;
  const PageTable table = page_table(row.segment->latents, shape.width());
  const int64_t from = part * part_tokens(row.visible);
  const int64_t to = least(row.visible, from + part_tokens(row.visible));
  const int64_t slot = row.t * pass.max_parts + part;
  for (int64_t h = begin; h < end; h += kTileWidth) {
    load_panel(pass.query + (row.t * shape.heads + h) * pass.query_stride, pass.query_stride,
               least(kTileWidth, shape.heads - h), shape.width(), s.query + h * shape.width());
  }
  for (int64_t first = from; first < to; first += kTile) {
    const int64_t count = least(kTile, to - first);
    const KeyPart latents = load_tile(table, shape.width(), first, count, s.stage, pass.query_stride);
    for (int64_t h = begin; h < end; h += kTileWidth) {
      if (shape.heads - h > kLanes) {
        attend_tile<kTileCols>(pass, latents, count, slot, h, first == from, s);
      } else {
        attend_tile<1>(pass, latents, count, slot, h, first == from, s);
      }
    }
  }
}

// The parts of one row and head joined into the first one's attended row, divided by the softmax sum.
void merge_parts(const Pass& pass, const Row& row, int64_t h) {
  const int64_t slot = row.t * pass.max_parts;
  const int64_t count = num_parts(row.visible);
  const int64_t part_stride = pass.shape.heads * pass.rank_stride;
  float* attended = pass.attended + (slot * pass.shape.heads + h) * pass.rank_stride;
  const float* part_largest = pass.largest + slot * pass.head_stride + h;
  const float* part_sum = pass.sum + slot * pass.head_stride + h;
  float weight[kMaxParts];
  float largest = part_largest[0];
  for (int64_t p = 1; p < count; ++p) {
    const float candidate = part_largest[p * pass.head_stride];
    largest = candidate > largest ? candidate : largest;
  }
  float sum = 0.f;
  for (int64_t p = 0; p < count; ++p) {
    simd::store_partial(weight + p, simd::exp(simd::broadcast(part_largest[p * pass.head_stride] - largest)), 1);
    sum += weight[p] * part_sum[p * pass.head_stride];
  }
  for (int64_t c = 0; c < pass.shape.rank; c += kLanes) {
    const int64_t left = lanes_left(pass.shape.rank - c);
    Vec total = simd::load_partial(attended + c, left) * simd::broadcast(weight[0]);
    for (int64_t p = 1; p < count; ++p) {
      total = simd::fma(simd::broadcast(weight[p]), simd::load_partial(attended + p * part_stride + c, left), total);
    }
    simd::store(attended + c, total / simd::broadcast(sum));
  }
}

// out = W_UV m: the rows of W_UV against the merged latents.
template <WeightFormat F>
void project_values(const Pass& pass, const Row& row, int64_t h) {
  constexpr int kRows = 4;
  const MlaShape& shape = pass.shape;
  const MlaArgs& args = *pass.args;
  const float* m = pass.attended + (row.t * pass.max_parts * shape.heads + h) * pass.rank_stride;
  float* out = args.out.data + row.t * args.out.stride[0] + h * args.out.stride[1];
  const int64_t first = (h * (shape.nope + shape.v) + shape.nope) * shape.rank;
  for (int64_t j = 0; j < shape.v; j += kRows) {
    Vec acc[kRows];
    int64_t start[kRows];
    for (int r = 0; r < kRows; ++r) {
      acc[r] = simd::zero();
      start[r] = first + least(j + r, shape.v - 1) * shape.rank;
    }
    int64_t c = 0;
    for (; c + kLanes <= shape.rank; c += kLanes) {
      const Vec latent = simd::load(m + c);
      for (int r = 0; r < kRows; ++r) {
        acc[r] = simd::fma(load_stored<F>(args.kv_b.data, start[r] + c), latent, acc[r]);
      }
    }
    if (c < shape.rank) {
      const Vec latent = simd::load(m + c);
      for (int r = 0; r < kRows; ++r) {
        const Vec w = load_stored_partial<F>(args.kv_b.data, start[r] + c, shape.rank - c);
        acc[r] = simd::fma(w, latent, acc[r]);
      }
    }
    for (int64_t r = 0; r < kRows && j + r < shape.v; ++r) out[j + r] = simd::sum(acc[r]);
  }
}

void project_values(const Pass& pass, WeightFormat format, const Row& row, int64_t h) {
  switch (format) {
    case WeightFormat::kF32: project_values<WeightFormat::kF32>(pass, row, h); return;
    case WeightFormat::kF16: project_values<WeightFormat::kF16>(pass, row, h); return;
    case WeightFormat::kBF16: project_values<WeightFormat::kBF16>(pass, row, h); return;
    case WeightFormat::kInt8:
    case WeightFormat::kMxfp4: return;  // refused by mla.cpp
  }
}

// The attention tasks of all rows: (row, part, group of panels). One task takes all panels of a part, so that the
// latents come from memory once, unless that leaves threads idle.
void attend(const ExecContext& ctx, const Pass& pass, const Row* rows, const int32_t* first_part, int64_t num_rows,
            float* scratch, int64_t scratch_size) {
  const int64_t panels = pass.head_stride / kTileWidth;
  const int64_t parts = first_part[num_rows];
  const int64_t groups = parts >= 2 * ctx.pool.num_threads() ? 1 : panels;
  ctx.pool.parallel_for(parts * groups, [&](int64_t task, int thread) {
    const int64_t part = task / groups;
    const int64_t group = task % groups;
    int64_t low = 0;
    int64_t high = num_rows;  // the row is in [low, high)
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (first_part[middle] <= part ? low : high) = middle;
    }
    ThreadScratch s{};
    s.query = scratch + thread * scratch_size;
    s.stage = s.query + pass.head_stride * pass.shape.width();
    s.weights = s.stage + kTile * pass.query_stride;
    s.correction = s.weights + kTile * kTileWidth;
    attend_part(pass, rows[low], panels * group / groups * kTileWidth,
                least(pass.shape.heads, panels * (group + 1) / groups * kTileWidth), part - first_part[low], s);
  });
}

// Lists the query rows; returns how many, and sets the largest number of parts and each row's first part.
int64_t list_rows(const MlaArgs& args, Row* rows, int32_t* first_part, int64_t& max_parts) {
  const MlaSegment* segments = args.segments.data();
  const auto num_segments = static_cast<int64_t>(args.segments.size());
  int64_t count = 0;
  int64_t parts = 0;
  max_parts = 1;
  for (int64_t i = 0; i < num_segments; ++i) {
    for (int64_t r = 0; r < segments[i].num_rows; ++r) {
      const int64_t visible = segments[i].latents.length - segments[i].num_rows + r + 1;
      first_part[count] = static_cast<int32_t>(parts);
      rows[count++] = {segments[i].row_begin + r, visible, &segments[i]};
      parts += num_parts(visible);
      if (num_parts(visible) > max_parts) max_parts = num_parts(visible);
    }
  }
  first_part[count] = static_cast<int32_t>(parts);
  return count;
}

void run_mla_absorbed(const ExecContext& ctx, const MlaArgs& args) {
  simd::Scratch memory(ctx.arena);
  const int64_t T = args.q.shape[0];
  Pass pass{};
  pass.args = &args;
  pass.shape = mla_shape(args);
  pass.query_stride = round_up(pass.shape.width(), kLanes);
  pass.rank_stride = round_up(pass.shape.rank, kLanes);
  pass.head_stride = round_up(pass.shape.heads, kTileWidth);
  Row* rows = static_cast<Row*>(memory.bytes(T * static_cast<int64_t>(sizeof(Row))));
  int32_t* first_part = memory.ints(T + 1);
  const int64_t num_rows = list_rows(args, rows, first_part, pass.max_parts);
  const int64_t slots = T * pass.max_parts;
  pass.query = memory.floats(T * pass.shape.heads * pass.query_stride);
  pass.attended = memory.floats(slots * pass.shape.heads * pass.rank_stride);
  pass.largest = memory.floats(slots * pass.head_stride);
  pass.sum = memory.floats(slots * pass.head_stride);
  const int64_t scratch_size =
      round_up(pass.head_stride * pass.shape.width() + kTile * (pass.query_stride + kTileWidth) + kTileWidth, 16);
  float* scratch = memory.floats(scratch_size * ctx.pool.num_threads());
  const WeightFormat format = args.kv_b.format;
  // Rows innermost: a head's weights are read from memory once for all of them.
  ctx.pool.parallel_for(pass.shape.heads, [&](int64_t h, int) {
    for (int64_t i = 0; i < num_rows; ++i) absorb_query(pass, format, rows[i].t, h);
  });
  attend(ctx, pass, rows, first_part, num_rows, scratch, scratch_size);
  ctx.pool.parallel_for(pass.shape.heads, [&](int64_t h, int) {
    for (int64_t i = 0; i < num_rows; ++i) {
      merge_parts(pass, rows[i], h);
      project_values(pass, format, rows[i], h);
    }
  });
}

}  // namespace
}  // namespace tandem

// kernels/linear/linear.h for the rows of decodes over bf16 weights, on AMX tiles: 16 rows of a weight at a time past
// all tokens.
#include "kernels/amx/linear_formats.inl"
#include "kernels/amx/stream_tiles.inl"
#include "kernels/simd/scratch.h"
#include "kernels/simd/task_runs.h"

namespace tandem {
namespace {

using simd::row_of;
using simd::Scratch;

constexpr int64_t kTaskBytes = 32 * 1024;  // of weights: long against a hand-out, short enough to balance

struct StreamPlan {
  const LinearOutput* outputs;  // of bf16 weights
  const MatrixView<const float>* x;
  RightLayout layout;  // of every 16 tokens
  int64_t token_tiles;
  int64_t col_tiles;
  int64_t rows_per_task;
  int64_t row_tasks;
  char* packed;
};

int64_t tasks_of(const LinearOutput& output, int64_t rows_per_task) {
  return tiles_of(output.weight.rows, rows_per_task);
}

// Column tiles [begin, end) of all tokens.
void pack_range(const StreamPlan& plan, int64_t begin, int64_t end) {
  const int64_t T = plan.x->shape[0];
  for (int64_t tile = 0; tile < plan.token_tiles; ++tile) {
    RightLayout own = plan.layout;
    own.tokens = least(T - tile * kTileRows, kTileRows);
    const float* rows[kTileRows];
    for (int64_t t = 0; t < own.tokens; ++t) rows[t] = row_of(*plan.x, tile * kTileRows + t);
    pack_few(rows, own, plan.x->shape[1], begin, end, plan.packed + tile * plan.col_tiles * own.tile_bytes);
  }
}

void pack_inputs(const ExecContext& ctx, const StreamPlan& plan) {
  constexpr int64_t kChunk = 16;       // column tiles of a task
  constexpr int64_t kSmall = 1 << 13;  // values that are not worth waking threads for
  if (plan.x->shape[0] * plan.x->shape[1] <= kSmall) {
    pack_range(plan, 0, plan.col_tiles);
  } else {
    ctx.pool.parallel_for(tiles_of(plan.col_tiles, kChunk), [&](int64_t chunk, int) {
      pack_range(plan, chunk * kChunk, least((chunk + 1) * kChunk, plan.col_tiles));
    });
  }
}

// Rows [row, row + rows) of an output, at most 16, for all tokens.
void run_rows(const StreamPlan& plan, const LinearOutput& output, int64_t row, int64_t rows) {
  const int64_t cols = output.weight.cols;
  const char* data = static_cast<const char*>(output.weight.data) + row * cols * 2;
  const int64_t T = plan.x->shape[0];
  for (int64_t tile = 0; tile < plan.token_tiles; ++tile) {
    RightLayout own = plan.layout;
    own.tokens = least(T - tile * kTileRows, kTileRows);
    __m512 sums[kTileRows];
    multiply_rows(data, rows, cols, plan.packed + tile * plan.col_tiles * own.tile_bytes, own, sums);
    for (int64_t t = 0; t < own.tokens; ++t) {
      _mm512_mask_storeu_ps(row_of(output.y, tile * kTileRows + t) + row, simd::first_lanes(rows), sums[t]);
    }
  }
}

void run_task(const StreamPlan& plan, int64_t task) {
  const TileScope scope(plan.layout.row_bytes);
  const LinearOutput* output = plan.outputs;
  for (; task >= tasks_of(*output, plan.rows_per_task); ++output) task -= tasks_of(*output, plan.rows_per_task);
  const int64_t end = least((task + 1) * plan.rows_per_task, output->weight.rows);
  for (int64_t row = task * plan.rows_per_task; row < end; row += kTileRows) {
    run_rows(plan, *output, row, least(end - row, kTileRows));
  }
}

int64_t choose_rows(const LinearOutput* outputs, int64_t num_outputs, int threads) {
  int64_t rows = 0;
  int64_t bytes = 0;
  for (int64_t i = 0; i < num_outputs; ++i) {
    rows += outputs[i].weight.rows;
    bytes += outputs[i].weight.rows * outputs[i].weight.cols * 2;
  }
  const int64_t wanted = least(kTaskBytes * rows / (bytes + 1), rows / (8 * threads)) / kTileRows * kTileRows;
  return wanted < kTileRows ? kTileRows : wanted;
}

void linear_tiles(const ExecContext& ctx, const MatrixView<const float>& x, const LinearOutput* outputs,
                  int64_t num_outputs) {
  Scratch scratch(ctx.arena);
  const int threads = ctx.pool.num_threads();
  StreamPlan plan{};
  plan.outputs = outputs;
  plan.x = &x;
  plan.layout = right_layout(least(x.shape[0], kTileRows));
  plan.token_tiles = tiles_of(x.shape[0], kTileRows);
  plan.col_tiles = tiles_of(x.shape[1], kTileCols);
  plan.rows_per_task = choose_rows(outputs, num_outputs, threads);
  for (int64_t i = 0; i < num_outputs; ++i) plan.row_tasks += tasks_of(outputs[i], plan.rows_per_task);
  plan.packed = static_cast<char*>(scratch.bytes(plan.token_tiles * plan.col_tiles * plan.layout.tile_bytes));
  pack_inputs(ctx, plan);
  simd::for_each_task_in_runs(ctx, plan.row_tasks, [&](int64_t task, int, bool) { run_task(plan, task); });
}

}  // namespace

namespace amx {

void linear(const ExecContext& ctx, const LinearArgs& args) {
  linear_by_path(
      ctx, args, [](const WeightView& weight) { return weight.format == WeightFormat::kBF16; }, linear_tiles);
}

}  // namespace amx
}  // namespace tandem

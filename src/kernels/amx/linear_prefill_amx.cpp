// kernels/linear/linear.h for the rows of prompts, on AMX tiles. Work is divided over token blocks whose packed form
// stays in the second-level cache, and in each over the union of the rows of all matrices.
#include "kernels/amx/linear_formats.inl"
#include "kernels/simd/scratch.h"

namespace tandem {
namespace {

using simd::row_of;
using simd::Scratch;

constexpr int64_t kCacheBytes = 5 << 18;  // of a thread's second-level cache, for packed activations
constexpr int64_t kMostRows = 256;        // of a task

struct TilePlan {
  const LinearOutput* outputs;  // those that tiles can multiply
  int64_t num_tokens;
  int64_t token_tiles;
  int64_t block_tiles;  // token tiles of a task
  int64_t col_tiles;
  int64_t rows_per_task;
  int64_t row_tasks;
  char* packed;
  char* scratch;
  int64_t scratch_per_thread;
};

int64_t tasks_of(const LinearOutput& output, int64_t rows_per_task) {
  return tiles_of(output.weight.rows, rows_per_task);
}

void pack_rows(const ExecContext& ctx, const MatrixView<const float>& x, const TilePlan& plan) {
  ctx.pool.parallel_for(plan.token_tiles, [&](int64_t tile, int) {
    const float* rows[kTileRows];
    for (int64_t t = 0; t < kTileRows; ++t) {
      const int64_t token = tile * kTileRows + t;
      rows[t] = token < plan.num_tokens ? row_of(x, token) : nullptr;
    }
    pack_tokens(rows, x.shape[1], plan.packed + tile * plan.col_tiles * kPackedBytes);
  });
}

// 32 outputs from `row` on of one token tile into y.
void store_result(const float* result, const TilePlan& plan, int64_t tile, const MatrixView<float>& y, int64_t row) {
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t first = row + half * kTileRows;
    const int64_t outputs = least(y.shape[1] - first, kTileRows);
    if (outputs <= 0) return;
    __m512i rows[16];
    by_token(result + half * kResultFloats, rows);
    const int64_t tokens = least(plan.num_tokens - tile * kTileRows, kTileRows);
    for (int64_t t = 0; t < tokens; ++t) {
      _mm512_mask_storeu_epi32(row_of(y, tile * kTileRows + t) + first, simd::first_lanes(outputs), rows[t]);
    }
  }
}

void run_task(const TilePlan& plan, int64_t task, int thread) {
  const TileScope scope;
  int64_t row_task = task % plan.row_tasks;
  const int64_t first_tile = task / plan.row_tasks * plan.block_tiles;
  const int64_t last_tile = least(first_tile + plan.block_tiles, plan.token_tiles);
  const LinearOutput* output = plan.outputs;
  for (; row_task >= tasks_of(*output, plan.rows_per_task); ++output) row_task -= tasks_of(*output, plan.rows_per_task);
  const int64_t end = least((row_task + 1) * plan.rows_per_task, output->weight.rows);
  for (int64_t row = row_task * plan.rows_per_task; row < end; row += kPanelRows) {
    char* panel = plan.scratch + thread * plan.scratch_per_thread;
    fill_panel(output->weight, row, panel);
    multiply_tiles(panel, plan.packed, plan.col_tiles, first_tile, last_tile,
                   [&](int64_t tile, const float* result) { store_result(result, plan, tile, output->y, row); });
  }
}

int64_t choose_rows(const TilePlan& plan, int64_t rows, int threads) {
  const int64_t blocks = tiles_of(plan.token_tiles, plan.block_tiles);
  int64_t wanted = rows * blocks / (4 * threads) / kPanelRows * kPanelRows;
  if (wanted < kPanelRows) wanted = kPanelRows;
  return least(wanted, kMostRows);
}

void linear_tiles(const ExecContext& ctx, const MatrixView<const float>& x, const LinearOutput* outputs,
                  int64_t num_outputs) {
  Scratch scratch(ctx.arena);
  const int threads = ctx.pool.num_threads();
  TilePlan plan{};
  plan.outputs = outputs;
  plan.num_tokens = x.shape[0];
  plan.token_tiles = tiles_of(x.shape[0], kTileRows);
  plan.col_tiles = tiles_of(x.shape[1], kTileCols);
  plan.block_tiles = kCacheBytes / (plan.col_tiles * kPackedBytes) / 2 * 2;
  if (plan.block_tiles < 2) plan.block_tiles = 2;
  int64_t rows = 0;
  for (int64_t i = 0; i < num_outputs; ++i) rows += outputs[i].weight.rows;
  plan.rows_per_task = choose_rows(plan, rows, threads);
  for (int64_t i = 0; i < num_outputs; ++i) plan.row_tasks += tasks_of(outputs[i], plan.rows_per_task);
  plan.packed = static_cast<char*>(scratch.bytes(plan.token_tiles * plan.col_tiles * kPackedBytes));
  plan.scratch_per_thread = panel_bytes(x.shape[1]);
  plan.scratch = static_cast<char*>(scratch.bytes(plan.scratch_per_thread * threads));
  pack_rows(ctx, x, plan);
  const int64_t blocks = tiles_of(plan.token_tiles, plan.block_tiles);
  ctx.pool.parallel_for(plan.row_tasks * blocks, [&](int64_t task, int thread) { run_task(plan, task, thread); });
}

}  // namespace

namespace amx {

void linear_prefill(const ExecContext& ctx, const LinearArgs& args) {
  linear_by_path(ctx, args, is_exact_in_bf16, linear_tiles);
}

}  // namespace amx
}  // namespace tandem

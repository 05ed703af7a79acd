// kernels/linear/linear_simd.inl (TANDEM_SET: the including backend): the work of `linear` divided over the union of
// the rows of all matrices (and over token blocks); the product itself is kernels/simd/weight_product.h.
#include "kernels/backend_entries.h"
#include "kernels/simd/scratch.h"
#include "kernels/simd/task_runs.h"
#include "kernels/simd/weight_product.h"
#include "kernels/simd/weight_rows.h"

namespace tandem {
namespace {

using namespace simd;

struct LinearPlan {
  const LinearOutput* outputs;
  int64_t num_outputs;
  int64_t num_tokens;
  int64_t rows_per_task;
  int64_t row_tasks;     // over all outputs
  const float* split_x;  // x in even/odd order, or null when no weight is MXFP4
  float* scratch;
  int64_t scratch_per_thread;
};

// Tasks of about this many weight bytes: long against a hand-out, short enough to balance.
constexpr int64_t kTaskBytes = 32 * 1024;

int64_t choose_rows_per_task(const LinearArgs& a, const LinearOutput* outputs, int64_t num_outputs, int threads) {
  int64_t rows = 0;
  int64_t bytes = 0;
  for (int64_t i = 0; i < num_outputs; ++i) {
    rows += outputs[i].weight.rows;
    bytes += outputs[i].weight.rows * row_bytes(outputs[i].weight.format, outputs[i].weight.cols);
  }
  const bool blocked = !TANDEM_SET::product_streams(a.x.shape[0]);
  int64_t per_task = blocked ? kRowBlock : kTaskBytes * rows / bytes;
  const int64_t balanced = rows / (8 * threads);
  if (per_task > balanced) per_task = balanced;
  per_task = (per_task + 7) / 8 * 8;
  return per_task < 8 ? 8 : per_task;
}

int64_t tasks_of(const LinearOutput& output, int64_t rows_per_task) {
  return (output.weight.rows + rows_per_task - 1) / rows_per_task;
}

void run_linear_task(const LinearArgs& a, const LinearPlan& plan, int64_t task, int thread) {
  // Row tasks run fastest: neighbours in time share the same block of x.
  int64_t row_task = task % plan.row_tasks;
  const int64_t first_token = task / plan.row_tasks * kTokenBlock;
  const LinearOutput* output = plan.outputs;
  for (; row_task >= tasks_of(*output, plan.rows_per_task); ++output) row_task -= tasks_of(*output, plan.rows_per_task);

  const WeightView& weight = output->weight;
  const bool split = weight.format == WeightFormat::kMxfp4;
  const float* x[kTokenBlock];
  float* y[kTokenBlock];
  Product p;
  p.data = weight.data;
  p.scale = weight.scale;
  p.cols = weight.cols;
  p.row_begin = row_task * plan.rows_per_task;
  p.row_end = p.row_begin + plan.rows_per_task < weight.rows ? p.row_begin + plan.rows_per_task : weight.rows;
  p.num_tokens = plan.num_tokens - first_token < kTokenBlock ? plan.num_tokens - first_token : kTokenBlock;
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    x[t] = split ? plan.split_x + (first_token + t) * weight.cols : row_of(a.x, first_token + t);
    y[t] = row_of(output->y, first_token + t) + p.row_begin;
  }
  p.x = x;
  p.y = y;
  p.scratch = plan.scratch + thread * plan.scratch_per_thread;
  p.next = static_cast<const char*>(weight.data) + p.row_end * row_bytes(weight.format, weight.cols);
  TANDEM_SET::weight_product(weight.format, p);
}

void linear_simd(const ExecContext& ctx, const LinearArgs& a) {
  const int64_t T = a.x.shape[0];
  const int64_t in = a.x.shape[1];
  const int threads = ctx.pool.num_threads();
  Scratch scratch(ctx.arena);
  LinearPlan plan{};
  plan.outputs = a.outputs.data();
  plan.num_outputs = static_cast<int64_t>(a.outputs.size());
  plan.num_tokens = T;
  plan.rows_per_task = choose_rows_per_task(a, plan.outputs, plan.num_outputs, threads);
  plan.scratch_per_thread = TANDEM_SET::product_scratch_floats(in, T);
  plan.scratch = scratch.floats(plan.scratch_per_thread * threads);
  bool any_split = false;
  for (int64_t i = 0; i < plan.num_outputs; ++i) {
    plan.row_tasks += tasks_of(plan.outputs[i], plan.rows_per_task);
    any_split |= plan.outputs[i].weight.format == WeightFormat::kMxfp4;
  }
  if (any_split) {
    float* split_x = scratch.floats(T * in);
    for_each_row(ctx, T, in, [&](int64_t t, int) { split_even_odd(row_of(a.x, t), in, split_x + t * in); });
    plan.split_x = split_x;
  }
  const int64_t token_tasks = (T + kTokenBlock - 1) / kTokenBlock;
  for_each_task_in_runs(ctx, plan.row_tasks * token_tasks,
                        [&](int64_t task, int thread, bool) { run_linear_task(a, plan, task, thread); });
}

}  // namespace
}  // namespace tandem

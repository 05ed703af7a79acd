// kernels/kda/kda_gate_simd.inl: the decay gate of kda.h over Vec. A task is a block of rows.
#include <cmath>

#include "kernels/backend_entries.h"
#include "kernels/kda/kda_gate_rows.h"
#include "kernels/simd/scratch.h"

namespace tandem {
namespace {

constexpr int64_t kGateRows = 8;  // rows a task

void run_kda_gate(const ExecContext& ctx, const KdaGateArgs& args) {
  const int64_t rows = args.z.shape[0];
  const int64_t heads = args.z.shape[1];
  const int64_t key_dim = args.z.shape[2];
  const bool bounded = args.lower_bound.has_value();
  const float bound = bounded ? *args.lower_bound : 0.f;
  simd::Scratch memory(ctx.arena);
  float* a = memory.floats(heads);
  for (int64_t h = 0; h < heads; ++h) a[h] = expf(args.a_log.data[h * args.a_log.stride[0]]);
  ctx.pool.parallel_for((rows + kGateRows - 1) / kGateRows, [&](int64_t task, int) {
    const int64_t end = (task + 1) * kGateRows < rows ? (task + 1) * kGateRows : rows;
    for (int64_t t = task * kGateRows; t < end; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        gate_head(args.z.data + t * args.z.stride[0] + h * args.z.stride[1], args.dt_bias.data + h * key_dim,
                  args.g.data + t * args.g.stride[0] + h * args.g.stride[1], key_dim, simd::broadcast(a[h]),
                  simd::broadcast(bound), bounded);
      }
    }
  });
}

}  // namespace
}  // namespace tandem

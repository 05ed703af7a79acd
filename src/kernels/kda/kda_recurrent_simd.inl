// kernels/kda/kda_recurrent_simd.inl: the recurrence of kda.h over Vec. A task is one head of one segment.
#include "kernels/backend_entries.h"
#include "kernels/kda/kda_step_simd.inl"

namespace tandem {
namespace {

void run_kda_recurrent(const ExecContext& ctx, const KdaArgs& args) {
  const KdaShape shape = kda_shape(args);
  const int64_t decay_size = round_up(kStepRows * shape.key_dim, 16);
  simd::Scratch memory(ctx.arena);
  float* decay = memory.floats(decay_size * ctx.pool.num_threads());
  const KdaSegment* segments = args.segments.data();
  const auto num_segments = static_cast<int64_t>(args.segments.size());
  ctx.pool.parallel_for(num_segments * shape.heads, [&](int64_t task, int thread) {
    const KdaSegment& segment = segments[task / shape.heads];
    const int64_t h = task % shape.heads;
    float* S = segment.state + h * shape.key_dim * shape.value_dim;
    for (int64_t done = 0; done < segment.num_rows; done += kStepRows) {
      step_rows(args, segment.row_begin + done, least(kStepRows, segment.num_rows - done), h, S, 0, shape.value_dim,
                decay + thread * decay_size);
    }
  });
}

}  // namespace
}  // namespace tandem

// kernels/kda/kda_recurrent_ref.cpp: the recurrence of kda.h, token by token.
#include "kernels/backend_entries.h"
#include "kernels/kda/kda_ref_step.h"

namespace tandem::ref {

void kda_recurrent(const ExecContext&, const KdaArgs& args) {
  const int64_t state_size = args.q.shape[2] * args.v.shape[2];
  for (const KdaSegment& segment : args.segments) {
    for (int64_t t = segment.row_begin; t < segment.row_begin + segment.num_rows; ++t) {
      for (int64_t h = 0; h < args.q.shape[1]; ++h) kda_step(args, t, h, segment.state + h * state_size);
    }
  }
}

}  // namespace tandem::ref

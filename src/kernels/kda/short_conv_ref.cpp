// kernels/kda/short_conv_ref.cpp: the equation of short_conv.h in plain loops.
#include <cmath>

#include "kernels/backend_entries.h"

namespace tandem::ref {

void short_conv(const ExecContext& ctx, const ShortConvArgs& args) {
  const int64_t width = args.weight.shape[1];
  const ArenaScope scope(ctx.arena);
  float* u = ctx.arena.alloc<float>(width).data();  // u_{t−(W−1)} … u_t of one channel
  for (const ShortConvSegment& segment : args.segments) {
    for (int64_t c = 0; c < args.x.shape[1]; ++c) {
      for (int64_t j = 0; j + 1 < width; ++j) u[j + 1] = segment.num_rows > 0 ? segment.history(j, c) : 0.f;
      for (int64_t t = segment.row_begin; t < segment.row_begin + segment.num_rows; ++t) {
        for (int64_t j = 0; j + 1 < width; ++j) u[j] = u[j + 1];
        u[width - 1] = args.x(t, c);
        float y = 0.f;
        for (int64_t j = 0; j < width; ++j) y += args.weight(c, j) * u[j];
        args.out(t, c) = y / (1.f + std::exp(-y));
      }
      if (segment.num_rows == 0) continue;
      for (int64_t j = 0; j + 1 < width; ++j) segment.history(j, c) = u[j + 1];
    }
  }
}

}  // namespace tandem::ref

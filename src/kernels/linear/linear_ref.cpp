#include "kernels/backend_entries.h"
#include "tensor/mxfp4.h"

namespace tandem::ref {

void linear(const ExecContext& ctx, const LinearArgs& a) {
  const int64_t in = a.x.shape[1];
  const ArenaScope scope(ctx.arena);
  const std::span<float> row = ctx.arena.alloc<float>(in);
  for (const LinearOutput& output : a.outputs) {
    for (int64_t o = 0; o < output.weight.rows; ++o) {
      weight_row_to_f32(output.weight, o, row);
      for (int64_t t = 0; t < a.x.shape[0]; ++t) {
        float sum = 0.f;
        for (int64_t c = 0; c < in; ++c) sum += a.x(t, c) * row[c];
        output.y(t, o) = sum;
      }
    }
  }
}

}  // namespace tandem::ref

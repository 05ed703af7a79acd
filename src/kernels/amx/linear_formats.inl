// kernels/amx/linear_formats.inl: which outputs of a linear which tiles take; avx512 takes the others. For files built
// as `_amx` only.
#pragma once

#include "kernels/amx/int8_linear.h"
#include "kernels/amx/tiles.inl"
#include "kernels/backend_entries.h"

namespace tandem {
namespace {

// run(ctx, x, outputs, count) for those that it takes, in order; int8 has one form for all rows.
template <class Takes, class Run>
TANDEM_INLINE void for_outputs_of_tiles(const ExecContext& ctx, const LinearArgs& args, const Takes& takes,
                                        const Run& run) {
  constexpr int64_t kMost = 16;
  LinearOutput tiled[kMost];
  LinearOutput int8[kMost];
  LinearOutput others[kMost];
  const auto count = static_cast<int64_t>(args.outputs.size());
  for (int64_t begin = 0; begin < count; begin += kMost) {
    int64_t num_tiled = 0, num_int8 = 0, num_others = 0;
    for (int64_t i = begin; i < least(begin + kMost, count); ++i) {
      const LinearOutput& output = args.outputs.data()[i];
      if (takes(output.weight)) {
        tiled[num_tiled++] = output;
      } else if (amx::multiplies_int8(output.weight)) {
        int8[num_int8++] = output;
      } else {
        others[num_others++] = output;
      }
    }
    if (num_tiled > 0) run(ctx, args.x, tiled, num_tiled);
    if (num_int8 > 0) amx::int8_linear(ctx, args.x, int8, num_int8);
    if (num_others > 0) {
      LinearArgs rest = args;
      rest.outputs = {others, static_cast<size_t>(num_others)};
      avx512::linear(ctx, rest);
    }
  }
}

}  // namespace
}  // namespace tandem

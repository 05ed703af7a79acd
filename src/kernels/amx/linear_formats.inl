// kernels/amx/linear_formats.inl: which outputs of a linear go where: to the caller's tiles, to those of int8 weights,
// to avx512. For files built as `_amx` only.
#pragma once

#include "kernels/amx/int8_linear.h"
#include "kernels/amx/tiles.inl"
#include "kernels/backend_entries.h"

namespace tandem {
namespace {

enum class LinearPath { kTiles, kInt8Tiles, kOther };

// run(ctx, x, outputs, count) for those whose weight it takes; the outputs of each path are one call of it.
template <class Takes, class Run>
TANDEM_INLINE void linear_by_path(const ExecContext& ctx, const LinearArgs& args, const Takes& takes, const Run& run) {
  constexpr int64_t kMost = 16;
  const auto path_of = [&](const WeightView& weight) {
    if (amx::multiplies_int8(weight)) return LinearPath::kInt8Tiles;
    return takes(weight) ? LinearPath::kTiles : LinearPath::kOther;
  };
  const auto count = static_cast<int64_t>(args.outputs.size());
  for (int64_t begin = 0; begin < count; begin += kMost) {
    for (const LinearPath path : {LinearPath::kTiles, LinearPath::kInt8Tiles, LinearPath::kOther}) {
      LinearOutput chosen[kMost];
      int64_t num_chosen = 0;
      for (int64_t i = begin; i < least(begin + kMost, count); ++i) {
        const LinearOutput& output = args.outputs.data()[i];
        if (path_of(output.weight) == path) chosen[num_chosen++] = output;
      }
      if (num_chosen == 0) continue;
      LinearArgs some = args;
      some.outputs = {chosen, static_cast<size_t>(num_chosen)};
      switch (path) {
        case LinearPath::kTiles: run(ctx, args.x, chosen, num_chosen); break;
        case LinearPath::kInt8Tiles: amx::int8_linear(ctx, args.x, chosen, num_chosen); break;
        case LinearPath::kOther: avx512::linear(ctx, some); break;
      }
    }
  }
}

}  // namespace
}  // namespace tandem

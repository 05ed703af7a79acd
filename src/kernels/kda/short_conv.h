// kernels/kda/short_conv.h: causal depthwise convolution of width W over each sequence's rows, with SiLU.
//
//   y_t[c] = silu( Σ_{j=0..W−1} w[c][j] · u_{t−(W−1)+j}[c] )
//   u = history, then x: w[c][W−1] multiplies the current token. history afterwards = the last W−1 raw inputs u.
//   Source: Kimi Linear report; released modelling code (model.md §3.4 step 2).
//
// Shapes     x, out [T, C] (row stride free, last axis contiguous); weight [C, W]; a segment's history [W−1, C], row
//            stride free, oldest first; zeros before the start of a sequence. W ≥ 1 (W = 1: no history is touched).
// Aliasing   out may be x. Segments cover disjoint rows and distinct histories.
// Numerics   f32, taps added in the order j = 0..W−1; a row depends on its own sequence only, bitwise the same for any
//            split of the sequence into calls.
// Errors     kInvalidArgument on shape mismatch or rows outside [0, T).
#pragma once

#include <span>

#include "kernels/exec_context.h"
#include "tandem/status.h"
#include "tensor/view.h"

namespace tandem {

struct ShortConvSegment {
  int64_t row_begin = 0;
  int64_t num_rows = 0;
  MatrixView<float> history;  // [W−1, C], read and written
};

struct ShortConvArgs {
  MatrixView<const float> x;
  MatrixView<const float> weight;
  std::span<const ShortConvSegment> segments;
  MatrixView<float> out;
};
Status short_conv(const ExecContext& ctx, const ShortConvArgs& args);

}  // namespace tandem

// kernels/linear/linear.h: y_i = x W_iᵀ for several matrices W_i that share one input, as one operator.
//
//   Production packs such matrices (KDA: q, k, v, g, f_a, beta); here they stay where they lie in the checkpoint
//   and the work is divided over the union of their rows, so one pass over x and one fork-join serve all of them.
//
// Shapes     x [T, in]; W_i [out_i, in]; y_i [T, out_i], row stride free, last axis contiguous in x and y_i.
// Aliasing   y_i overlap neither x nor each other.
// Numerics   f32 accumulation over exact f32 values of the stored weights. A backend sums each y[t, o] in one fixed
//            order whatever T, the other rows and the other matrices are: rows are bitwise independent of the batch.
//            A backend may have two such orders, one for the rows of prompts (kernels/row_ranges.h).
// Errors     kInvalidArgument on shape or stride mismatch, or MXFP4 with `in` not a multiple of 32; ranges that are
// none.
#pragma once

#include <span>

#include "kernels/exec_context.h"
#include "kernels/row_ranges.h"
#include "tandem/status.h"
#include "tensor/view.h"
#include "tensor/weight_view.h"

namespace tandem {

struct LinearOutput {
  WeightView weight;    // [out, in]
  MatrixView<float> y;  // [T, out]
};

struct LinearArgs {
  MatrixView<const float> x;  // [T, in]
  std::span<const LinearOutput> outputs;
  std::span<const RowRange> prefill = {};  // rows of x that belong to prompts
};

Status linear(const ExecContext& ctx, const LinearArgs& args);  // validates metadata, then dispatches

}  // namespace tandem

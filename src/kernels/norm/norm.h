// kernels/norm/norm.h: the three row normalisations of the model.
//
//   rms_norm        out = w ⊙ x · rsqrt(mean(x²) + eps)                     eps inside the root, added to the mean
//   rms_norm_gated  out = rms_norm(x) ⊙ σ(gate)                             KDA output norm: norm first, gate second
//   l2_norm         out = x · rsqrt(Σ x² + eps)                             KDA q and k: eps added to the sum
//   Source: released modelling code; fla l2norm.
//
// Shapes     x, gate, out [T, D] (KDA: T = tokens · heads), row stride free, last axis contiguous; w [D].
// Aliasing   out may be x itself (same data and stride).
// Numerics   f32; a row depends on nothing but itself. Rows of zeros give zeros (eps > 0).
// Errors     kInvalidArgument on shape mismatch, or eps that is not > 0.
#pragma once

#include "kernels/exec_context.h"
#include "tandem/status.h"
#include "tensor/view.h"

namespace tandem {

struct RmsNormArgs {
  MatrixView<const float> x;
  VectorView<const float> weight;
  float eps = 1e-6f;
  MatrixView<float> out;
};
Status rms_norm(const ExecContext& ctx, const RmsNormArgs& args);

struct RmsNormGatedArgs {
  MatrixView<const float> x;
  MatrixView<const float> gate;
  VectorView<const float> weight;
  float eps = 1e-6f;
  MatrixView<float> out;
};
Status rms_norm_gated(const ExecContext& ctx, const RmsNormGatedArgs& args);

struct L2NormArgs {
  MatrixView<const float> x;
  float eps = 1e-6f;
  MatrixView<float> out;
};
Status l2_norm(const ExecContext& ctx, const L2NormArgs& args);

}  // namespace tandem

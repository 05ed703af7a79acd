// kernels/attn_res/attn_res.h: attention residuals, a softmax over depth for every token.
//
//   a_i = Σ_d ( s_i[d] · rsqrt(mean(s_i²) + eps) ) · w[d]      w = norm weight ⊙ pseudo-query, folded at load
//   out = Σ_i softmax(a)_i · s_i                               the RAW sources, not the normalised keys
//   Source: Attention Residuals report; released modelling code (model.md §3.3).
//
// Shapes     sources: n ≥ 1 matrices [T, D] in storage order, the running sum last; w [D]; out [T, D].
// Aliasing   out overlaps no source: a stored block must survive the mix (a scratch that reuses one is a known fault).
// Numerics   f32; a row depends on its own row of each source only. One source: out = that source, exactly.
// Errors     kInvalidArgument on shape mismatch, no source, or eps that is not > 0.
#pragma once

#include <span>

#include "kernels/exec_context.h"
#include "tandem/status.h"
#include "tensor/view.h"

namespace tandem {

struct AttnResMixArgs {
  std::span<const MatrixView<const float>> sources;
  VectorView<const float> score_weight;
  float eps = 1e-6f;
  MatrixView<float> out;
};
Status attn_res_mix(const ExecContext& ctx, const AttnResMixArgs& args);

}  // namespace tandem

// kernels/moe/experts.h: the routed experts of one layer on the tokens that chose them.
//
//   y_t = Σ_j w_tj · W2_e ( act(W1_e z_t, W3_e z_t) ),  e = topk_ids[t, j], summed in ascending order of e (of j if
//   equal)
//   expert_act = mxfp8: z and the activation's output are rounded to MXFP8 (tensor/mxfp4.h) before W1/W3 and W2.
//   Source: released modelling code (model.md §3.8); MXFP8 inputs of the deployed model (§5.2).
//
// Shapes     z, out [T, Dl] (Dl = latent width, or D without a latent); topk_* [T, k], k >= 1; w1, w3 [I, Dl];
//            w2 [Dl, I], Dl and I the same for all E experts.
//            Tokens are grouped by expert, so each expert's bytes are read once a call (once a block of tokens when the
//            call is so long that its T · k · I activations would pass 64 MiB); no more than a few rows of a weight
//            are ever expanded in memory.
// Parts      Only experts in [expert_begin, expert_end) are read and contribute. A call for [0, a) followed by one for
//            [a, E) with add_to_out gives bit for bit what one call gives: experts that are not in memory together can
//            be taken in parts.
// Aliasing   out overlaps nothing.
// Numerics   f32 accumulation; the order of every sum is fixed whatever the other tokens chose: rows are bitwise
//            independent of the batch.
// Errors     moe_experts: kInvalidArgument on shape mismatch of the activations, no expert, a first expert that does
//            not fit z, or an expert id outside [0, E). The weights of all experts are checked once, by
//            check_expert_weights when they are loaded, not in each call.
#pragma once

#include <limits>
#include <span>

#include "kernels/activation/gated_act.h"
#include "kernels/exec_context.h"
#include "kernels/row_ranges.h"
#include "tandem/status.h"
#include "tensor/view.h"
#include "tensor/weight_view.h"

namespace tandem {

// Every expert has w1, w3 [I, Dl] and w2 [Dl, I] with memory behind them (MXFP4: scales, a width that is a multiple of
// 32), or kInvalidArgument naming the first that has not. Call it once for each layer, at load: moe_experts relies on
// it.
Status check_expert_weights(std::span<const ExpertWeights> experts, int64_t Dl, int64_t I);

enum class ExpertAct { kF32, kMxfp8 };

struct MoeExpertsArgs {
  MatrixView<const float> z;
  MatrixView<const int32_t> topk_ids;
  MatrixView<const float> topk_weights;
  std::span<const ExpertWeights> experts;  // E of them
  GatedActParams act;
  ExpertAct expert_act = ExpertAct::kF32;
  int64_t expert_begin = 0;
  int64_t expert_end = std::numeric_limits<int32_t>::max();  // beyond the last: all
  bool add_to_out = false;                                   // out holds the sum over the experts below expert_begin
  std::span<const RowRange> prefill = {};                    // rows of z that belong to prompts (kernels/row_ranges.h)
  MatrixView<float> out;
};
Status moe_experts(const ExecContext& ctx, const MoeExpertsArgs& args);

}  // namespace tandem

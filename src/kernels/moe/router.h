// kernels/moe/router.h: choose k of E experts from router logits (noaux_tc: the bias selects, it never weighs).
//
//   s = σ(logit);  b = s + bias
//   G groups, if topk_group < G: group score = sum of the two largest b in it (the largest if it has one expert); the
//   best topk_group groups stay, b = −inf elsewhere (−inf, not 0: biased scores can be negative)
//   chosen = the k largest b, ties to the lowest index;  w = s[chosen]
//   renormalize and k > 1: w /= Σw + 1e-20;   then w *= scale
//   Source: released modelling code (model.md §3.7).
//
// Shapes     logits [T, E]; bias [E]; topk_ids, topk_weights [T, k], ids ascending, weights in the same order.
// Numerics   f32; rows are independent.
// Errors     kInvalidArgument on shape mismatch, k > E (or k > experts of the kept groups), E % G != 0, topk_group > G.
//            A row with a score that is not finite harms nobody else: it gets experts 0..k−1 and NaN weights, so that
//            its own output is NaN and the sampler refuses that sequence.
#pragma once

#include <cstdint>

#include "kernels/exec_context.h"
#include "tandem/status.h"
#include "tensor/view.h"

namespace tandem {

struct RouterSelectArgs {
  MatrixView<const float> logits;
  VectorView<const float> bias;
  int64_t num_groups = 1;
  int64_t topk_group = 1;
  bool renormalize = true;
  float scale = 1.f;
  MatrixView<int32_t> topk_ids;
  MatrixView<float> topk_weights;
};
Status router_select(const ExecContext& ctx, const RouterSelectArgs& args);

}  // namespace tandem

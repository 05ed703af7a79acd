// model/layers/latent_moe.h: the feed-forward half of a layer: a dense MLP, or routed experts (in a latent of their own
// width or at full width) beside shared experts.
//   Source: K3 technical report (Stable LatentMoE); model.md §3.6–3.8.
#pragma once

#include "model/forward.h"
#include "model/layers/streamed_experts.h"

namespace tandem {

// x, y [T, D]; x is the normalised input, y the output. No overlap. `ahead` is used where experts are streamed.
Status dense_mlp(const StepContext& step, const MlpWeights& weights, const MatrixView<const float>& x,
                 const MatrixView<float>& y);
Status moe_layer(const StepContext& step, int64_t layer, const MoeLayerWeights& weights,
                 const MatrixView<const float>& x, const MatrixView<float>& y, const LookAhead& ahead = {});

}  // namespace tandem

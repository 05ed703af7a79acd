// model/layers/streamed_experts.h: routed experts that come from an ExpertSource, and the look ahead that starts the
// next layer's reads early: its router on the hidden state at hand, which the residual stream changes slowly.
//   Source: pre-gating of experts by an earlier layer's state, as in Pre-gated MoE and MoE-Infinity.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/moe/experts.h"
#include "model/forward.h"

namespace tandem {

// The next layer with experts, and rows [T, D] that resemble the input of its feed-forward norm.
struct LookAhead {
  int64_t layer = 0;
  const LayerWeights* weights = nullptr;  // null: nothing to look ahead to
  MatrixView<const float> h;
};
// From layer l, at the input h of its own feed-forward norm.
LookAhead look_ahead(const StepContext& step, int64_t l, std::span<const LayerWeights> layers,
                     const MatrixView<const float>& h);

// Asks the step's source for the experts of topk_ids [T, k], and then for those that come next.
Status request_experts(const StepContext& step, int64_t layer, const MatrixView<const int32_t>& topk_ids,
                       const LookAhead& ahead);

// moe_experts over the parts of the source: bitwise what one call with all experts in memory gives.
Status streamed_experts(const StepContext& step, MoeExpertsArgs args);

}  // namespace tandem

// model/layers/routing.h: the experts that a layer's router chooses for each row.
//   Source: K3 technical report (Stable LatentMoE, sigmoid router with a correction bias); model.md §3.7.
#pragma once

#include "model/forward.h"

namespace tandem {

struct Routing {
  MatrixView<int32_t> ids;    // [T, k]
  MatrixView<float> weights;  // [T, k]
};

// From the router's logits [T, E]; in the step's arena.
Result<Routing> select_experts(const StepContext& step, const MoeLayerWeights& weights,
                               const MatrixView<const float>& logits);

}  // namespace tandem

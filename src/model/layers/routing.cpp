#include "model/layers/routing.h"

#include "kernels/moe/router.h"
#include "model/layers/rows.h"

namespace tandem {

Result<Routing> select_experts(const StepContext& step, const MoeLayerWeights& weights,
                               const MatrixView<const float>& logits) {
  const ModelConfig& config = step.config;
  const int64_t rows = logits.shape[0], k = config.num_experts_per_token;
  Routing routing;
  routing.ids = MatrixView<int32_t>::contiguous(step.exec.arena.alloc<int32_t>(rows * k).data(), {rows, k});
  routing.weights = alloc_rows(step, rows, k);
  TANDEM_RETURN_IF_ERROR(router_select(step.exec, {.logits = logits,
                                                   .bias = as_vector(weights.e_score_correction_bias),
                                                   .num_groups = config.num_expert_group,
                                                   .topk_group = config.topk_group,
                                                   .renormalize = config.moe_renormalize,
                                                   .scale = static_cast<float>(config.routed_scaling_factor),
                                                   .topk_ids = routing.ids,
                                                   .topk_weights = routing.weights}));
  return routing;
}

}  // namespace tandem

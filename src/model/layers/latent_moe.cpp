#include "model/layers/latent_moe.h"

#include <array>

#include "kernels/activation/gated_act.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/linear/linear.h"
#include "kernels/moe/experts.h"
#include "kernels/norm/norm.h"
#include "model/layers/routing.h"
#include "model/layers/rows.h"
#include "model/layers/streamed_experts.h"

namespace tandem {
namespace {

GatedActParams activation(const ModelConfig& config) {
  GatedActParams params;
  params.kind = config.hidden_act == HiddenAct::kSitu ? GatedAct::kSitu : GatedAct::kSwiGlu;
  params.beta = static_cast<float>(config.situ_beta);
  if (config.situ_linear_beta) params.linear_beta = static_cast<float>(*config.situ_linear_beta);
  return params;
}

// y = act(gate, up) W_downᵀ; gate is overwritten.
Status act_and_down(const StepContext& step, const MatrixView<float>& gate, const MatrixView<float>& up,
                    const WeightView& down, const MatrixView<float>& y) {
  TANDEM_RETURN_IF_ERROR(
      gated_act(step.exec, {.gate = gate, .up = up, .params = activation(step.config), .out = gate}));
  TANDEM_RETURN_IF_ERROR(round_activations(step, gate));
  const std::array<LinearOutput, 1> output = {{{down, y}}};
  TANDEM_RETURN_IF_ERROR(project(step, gate, output));
  return round_activations(step, y);
}

// sum = Σ of the chosen experts on z.
Status sum_of_experts(const StepContext& step, const MoeLayerWeights& weights, const MatrixView<const float>& z,
                      const Routing& routing, const MatrixView<float>& sum) {
  MoeExpertsArgs args = {.z = z,
                         .topk_ids = routing.ids,
                         .topk_weights = routing.weights,
                         .experts = weights.experts,
                         .act = activation(step.config),
                         .expert_act = step.options.expert_act,
                         .prefill = prefill_rows(step, z.shape[0]),
                         .out = sum};
  if (step.experts == nullptr) return moe_experts(step.exec, args);
  return streamed_experts(step, args);
}

// The routed half: experts on z, then (latent) norm of the weighted sum and projection up to D.
Status routed_experts(const StepContext& step, const MoeLayerWeights& weights, const MatrixView<const float>& z,
                      const Routing& routing, const MatrixView<float>& y) {
  const bool latent = !weights.latent_up.empty();
  const MatrixView<float> sum = latent ? alloc_rows(step, num_rows(step), weights.latent_up.cols) : y;
  TANDEM_RETURN_IF_ERROR(sum_of_experts(step, weights, z, routing, sum));
  TANDEM_RETURN_IF_ERROR(round_activations(step, sum));
  if (!latent) return Status::ok();
  if (!weights.latent_norm.empty()) {
    TANDEM_RETURN_IF_ERROR(rms_norm(step.exec, {.x = sum,
                                                .weight = as_vector(weights.latent_norm),
                                                .eps = static_cast<float>(step.config.rms_norm_eps),
                                                .out = sum}));
    TANDEM_RETURN_IF_ERROR(round_activations(step, sum));
  }
  const std::array<LinearOutput, 1> output = {{{weights.latent_up, y}}};
  TANDEM_RETURN_IF_ERROR(project(step, sum, output));
  return round_activations(step, y);
}

}  // namespace

Status dense_mlp(const StepContext& step, const MlpWeights& weights, const MatrixView<const float>& x,
                 const MatrixView<float>& y) {
  const PhaseTimer timer(step.times, Phase::kDenseMlp);
  const MatrixView<float> gate = alloc_rows(step, num_rows(step), weights.gate_proj.rows);
  const MatrixView<float> up = alloc_rows(step, num_rows(step), weights.up_proj.rows);
  const std::array<LinearOutput, 2> outputs = {{{weights.gate_proj, gate}, {weights.up_proj, up}}};
  TANDEM_RETURN_IF_ERROR(project(step, x, outputs));
  TANDEM_RETURN_IF_ERROR(round_activations(step, gate));
  TANDEM_RETURN_IF_ERROR(round_activations(step, up));
  return act_and_down(step, gate, up, weights.down_proj, y);
}

Status moe_layer(const StepContext& step, int64_t layer, const MoeLayerWeights& weights,
                 const MatrixView<const float>& x, const MatrixView<float>& y, const LookAhead& ahead) {
  const PhaseTimer timer(step.times, Phase::kMoe);
  const int64_t rows = num_rows(step);
  // Router, latent projection and shared experts read the same x: one fused operator.
  std::array<LinearOutput, 4> outputs;
  size_t count = 0;
  const MatrixView<float> logits = alloc_rows(step, rows, weights.router.rows);
  outputs[count++] = {weights.router, logits};
  MatrixView<float> z;
  if (!weights.latent_down.empty()) {
    z = alloc_rows(step, rows, weights.latent_down.rows);
    outputs[count++] = {weights.latent_down, z};
  }
  MatrixView<float> shared_gate, shared_up;
  if (weights.shared_experts) {
    shared_gate = alloc_rows(step, rows, weights.shared_experts->gate_proj.rows);
    shared_up = alloc_rows(step, rows, weights.shared_experts->up_proj.rows);
    outputs[count++] = {weights.shared_experts->gate_proj, shared_gate};
    outputs[count++] = {weights.shared_experts->up_proj, shared_up};
  }
  const std::span<const LinearOutput> used = std::span(outputs).first(count);
  TANDEM_RETURN_IF_ERROR(project(step, x, used));
  for (const LinearOutput& output : used.subspan(1)) TANDEM_RETURN_IF_ERROR(round_activations(step, output.y));

  const Result<Routing> routing = select_experts(step, weights, logits);
  if (!routing.is_ok()) return routing.status();
  if (step.observer != nullptr) step.observer->on_router(layer, routing.value().ids, routing.value().weights);
  if (step.experts != nullptr) TANDEM_RETURN_IF_ERROR(request_experts(step, layer, routing.value().ids, ahead));
  // The shared experts first: streamed ones are being read meanwhile.
  MatrixView<float> shared;
  if (weights.shared_experts) {
    shared = alloc_rows(step, rows, y.shape[1]);
    TANDEM_RETURN_IF_ERROR(act_and_down(step, shared_gate, shared_up, weights.shared_experts->down_proj, shared));
  }
  TANDEM_RETURN_IF_ERROR(
      routed_experts(step, weights, z.data != nullptr ? MatrixView<const float>(z) : x, routing.value(), y));
  if (!weights.shared_experts) return Status::ok();
  TANDEM_RETURN_IF_ERROR(add(step.exec, {.a = y, .b = shared, .out = y}));
  return round_activations(step, y);
}

}  // namespace tandem

#include "model/layers/streamed_experts.h"

#include <algorithm>
#include <array>

#include "kernels/linear/linear.h"
#include "kernels/norm/norm.h"
#include "model/layers/routing.h"
#include "model/layers/rows.h"

namespace tandem {
namespace {

// Ascending and distinct, in the step's arena.
std::span<const int32_t> distinct(const StepContext& step, const MatrixView<const int32_t>& ids) {
  const std::span<uint8_t> seen = step.exec.arena.alloc<uint8_t>(step.config.num_experts);
  const std::span<int32_t> found = step.exec.arena.alloc<int32_t>(step.config.num_experts);
  std::fill(seen.begin(), seen.end(), uint8_t{0});
  for (int64_t t = 0; t < ids.shape[0]; ++t) {
    for (int64_t j = 0; j < ids.shape[1]; ++j) seen[static_cast<size_t>(ids(t, j))] = 1;
  }
  size_t count = 0;
  for (size_t expert = 0; expert < seen.size(); ++expert) {
    if (seen[expert] != 0) found[count++] = static_cast<int32_t>(expert);
  }
  return found.first(count);
}

// Distinct, those with the most weight over the tokens first: a drive may have time for a few of them only.
std::span<const int32_t> by_weight(const StepContext& step, const MatrixView<const int32_t>& ids,
                                   const MatrixView<const float>& weights) {
  const std::span<float> total = step.exec.arena.alloc<float>(step.config.num_experts);
  const std::span<int32_t> order = step.exec.arena.alloc<int32_t>(step.config.num_experts);
  const std::span<const int32_t> found = distinct(step, ids);
  std::fill(total.begin(), total.end(), 0.f);
  for (int64_t t = 0; t < ids.shape[0]; ++t) {
    for (int64_t j = 0; j < ids.shape[1]; ++j) total[static_cast<size_t>(ids(t, j))] += weights(t, j);
  }
  std::copy(found.begin(), found.end(), order.begin());
  // A NaN (a sequence that is lost) sorts as nothing: an order must be one.
  for (float& weight : total) weight = weight > 0.f ? weight : 0.f;
  std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(found.size()), [&](int32_t a, int32_t b) {
    const float of_a = total[static_cast<size_t>(a)], of_b = total[static_cast<size_t>(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  });
  return order.first(found.size());
}

Status predict_experts(const StepContext& step, const LookAhead& ahead) {
  const ModelConfig& config = step.config;
  const auto& moe = std::get<MoeLayerWeights>(ahead.weights->feed_forward);
  const int64_t rows = ahead.h.shape[0];
  const MatrixView<float> x = alloc_rows(step, rows, ahead.h.shape[1]);
  TANDEM_RETURN_IF_ERROR(rms_norm(step.exec, {.x = ahead.h,
                                              .weight = as_vector(ahead.weights->post_attention_layernorm),
                                              .eps = static_cast<float>(config.rms_norm_eps),
                                              .out = x}));
  const MatrixView<float> logits = alloc_rows(step, rows, moe.router.rows);
  const std::array<LinearOutput, 1> output = {{{moe.router, logits}}};
  TANDEM_RETURN_IF_ERROR(project(step, x, output));
  const Result<Routing> routing = select_experts(step, moe, logits);
  if (!routing.is_ok()) return routing.status();
  step.experts->predict(ahead.layer, by_weight(step, routing.value().ids, routing.value().weights));
  return Status::ok();
}

}  // namespace

LookAhead look_ahead(const StepContext& step, int64_t l, std::span<const LayerWeights> layers,
                     const MatrixView<const float>& h) {
  if (step.experts == nullptr) return {};
  for (size_t next = static_cast<size_t>(l) + 1; next < layers.size(); ++next) {
    if (!std::holds_alternative<MoeLayerWeights>(layers[next].feed_forward)) continue;
    return {static_cast<int64_t>(next), &layers[next], h};
  }
  return {};
}

Status request_experts(const StepContext& step, int64_t layer, const MatrixView<const int32_t>& topk_ids,
                       const LookAhead& ahead) {
  const ArenaScope scratch(step.exec.arena);
  TANDEM_RETURN_IF_ERROR(step.experts->begin(layer, distinct(step, topk_ids)));
  if (ahead.weights == nullptr) return Status::ok();
  return predict_experts(step, ahead);
}

Status streamed_experts(const StepContext& step, MoeExpertsArgs args) {
  while (true) {
    const Result<std::optional<ExpertPart>> part = step.experts->next();
    if (!part.is_ok()) return part.status();
    if (!part.value()) return Status::ok();
    args.experts = part.value()->experts;
    args.expert_begin = part.value()->expert_begin;
    args.expert_end = part.value()->expert_end;
    TANDEM_RETURN_IF_ERROR(moe_experts(step.exec, args));
    args.add_to_out = true;
  }
}

}  // namespace tandem

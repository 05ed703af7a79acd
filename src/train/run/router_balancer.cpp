#include "train/run/router_balancer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

namespace tandem::train {
namespace {

at::Tensor rows_of(const at::Tensor& x, const at::Tensor& rows) { return rows.defined() ? x.index_select(0, rows) : x; }

// A token that may choose among k experts alone has no cutoff: there is nothing to balance.
bool has_choice(const ModelConfig& config) {
  const int64_t open = config.num_experts / config.num_expert_group * config.topk_group;
  return config.num_experts_per_token < open;
}

}  // namespace

RouterBalancer::RouterBalancer(TrainModel& model, BalancingKind kind)
    : kind_(has_choice(model.config()) ? kind : BalancingKind::kNone),
      experts_per_token_(model.config().num_experts_per_token) {
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.role != TensorRole::kRouterBias) continue;
    layers_.push_back({parameter.layer, parameter.value, {}, {}, {}, {}});
  }
}

void RouterBalancer::begin_step() {
  for (Layer& layer : layers_) {
    layer.counts = at::zeros(layer.bias.sizes(), layer.bias.options().dtype(at::kLong));
    layer.scores.clear();
    layer.cutoffs.clear();
    if (kind_ == BalancingKind::kHistogram) layer.histogram.emplace(layer.bias);
  }
}

void RouterBalancer::add(const std::vector<Routing>& routing, const at::Tensor& valid_rows) {
  const c10::NoGradGuard no_grad;
  for (Layer& layer : layers_) {
    const Routing& route = routing[static_cast<size_t>(layer.index)];
    const at::Tensor ids = rows_of(route.ids, valid_rows).reshape({-1});
    layer.counts.scatter_add_(0, ids, at::ones_like(ids));
    if (kind_ == BalancingKind::kNone) continue;
    const at::Tensor scores = rows_of(route.scores, valid_rows), cutoff = rows_of(route.cutoff, valid_rows);
    if (kind_ == BalancingKind::kHistogram) {
      layer.histogram->add(scores, cutoff, {});
    } else {
      layer.scores.push_back(scores);
      layer.cutoffs.push_back(cutoff);
    }
  }
}

void RouterBalancer::update() {
  if (kind_ == BalancingKind::kNone) return;
  const c10::NoGradGuard no_grad;
  for (Layer& layer : layers_) {
    const at::Tensor bias =
        kind_ == BalancingKind::kHistogram
            ? layer.histogram->solve(experts_per_token_)
            : exact_quantile_bias(at::cat(layer.scores), at::cat(layer.cutoffs), experts_per_token_);
    layer.bias.copy_(centred(bias));
    layer.scores.clear();
    layer.cutoffs.clear();
  }
}

at::Tensor RouterBalancer::load() const {
  if (layers_.empty()) return at::empty({0}, at::kDouble);
  std::vector<at::Tensor> counts;
  for (const Layer& layer : layers_) counts.push_back(layer.counts);
  const at::Tensor all = at::stack(counts).to(at::kDouble);
  return all.amax({1}) / all.mean({1}).clamp_min(1e-300);
}

}  // namespace tandem::train

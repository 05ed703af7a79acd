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

// Of each row of counts [layers, E], in double.
at::Tensor largest_over_mean(const at::Tensor& counts) {
  const at::Tensor exact = counts.to(at::kDouble);
  return exact.amax({1}) / exact.mean({1}).clamp_min(1e-300);
}

}  // namespace

RouterBalancer::RouterBalancer(TrainModel& model, BalancingKind kind)
    : kind_(has_choice(model.config()) ? kind : BalancingKind::kNone),
      experts_per_token_(model.config().num_experts_per_token) {
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.role != TensorRole::kRouterBias) continue;
    layers_.push_back({parameter.layer, parameter.value, {}, {}, {}});
  }
  const at::Device device = layers_.empty() ? at::Device(at::kCPU) : layers_.front().bias.device();
  const int64_t num_experts = layers_.empty() ? 0 : layers_.front().bias.size(0);
  counts_ = at::zeros({num_moe_layers(), num_experts}, at::TensorOptions().dtype(at::kLong).device(device));
  window_counts_ = at::zeros_like(counts_);
  window_steps_ = at::zeros({}, at::kLong);
}

void RouterBalancer::begin_step() {
  counts_.zero_();
  if (window_steps_.item<int64_t>() == kLoadWindowSteps) {
    window_counts_.zero_();
    window_steps_.zero_();
  }
  for (Layer& layer : layers_) {
    layer.scores.clear();
    layer.cutoffs.clear();
    if (kind_ == BalancingKind::kHistogram) layer.histogram.emplace(layer.bias);
  }
}

void RouterBalancer::add(const std::vector<Routing>& routing, const at::Tensor& valid_rows) {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    const Routing& route = routing[static_cast<size_t>(layer.index)];
    const at::Tensor ids = rows_of(route.ids, valid_rows).reshape({-1});
    counts_.select(0, static_cast<int64_t>(i)).scatter_add_(0, ids, at::ones_like(ids));
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
  window_counts_ += counts_;
  window_steps_ += 1;
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
  return largest_over_mean(counts_);
}

std::optional<std::vector<double>> RouterBalancer::window_load() const {
  if (layers_.empty() || window_steps_.item<int64_t>() != kLoadWindowSteps) return std::nullopt;
  const at::Tensor load = largest_over_mean(window_counts_).cpu();
  const double* values = load.data_ptr<double>();
  return std::vector<double>(values, values + load.size(0));
}

std::vector<std::pair<std::string, at::Tensor>> RouterBalancer::state() const {
  return {{"window_counts", window_counts_}, {"window_steps", window_steps_}};
}

}  // namespace tandem::train

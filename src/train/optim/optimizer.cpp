#include "train/optim/optimizer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "train/optim/muon.h"

namespace tandem::train {
namespace {

constexpr double kUpdateRms = 0.2;

}  // namespace

Optimizer::Optimizer(const ModelConfig& config, std::vector<Parameter>& parameters, const OptimizerOptions& options)
    : config_(config), options_(options) {
  for (Parameter& parameter : parameters) {
    if (!parameter.trainable) continue;
    Slot slot;
    slot.parameter = &parameter;
    slot.muon = is_muon_role(parameter.role);
    slot.decays = slot.muon || parameter.role == TensorRole::kEmbedTokens || parameter.role == TensorRole::kLmHead;
    slot.first = at::zeros_like(parameter.value.detach());
    if (!slot.muon) slot.second = at::zeros_like(parameter.value.detach());
    slots_.push_back(std::move(slot));
  }
}

void Optimizer::step(double learning_rate) {
  const c10::NoGradGuard no_grad;
  ++num_steps_;
  for (Slot& slot : slots_) {
    if (!slot.parameter->value.grad().defined()) continue;
    if (slot.decays) slot.parameter->value.mul_(1.0 - learning_rate * options_.weight_decay);
    if (slot.muon) {
      muon_step(slot, learning_rate);
    } else {
      adamw_step(slot, learning_rate);
    }
  }
}

void Optimizer::muon_step(Slot& slot, double learning_rate) {
  const at::Tensor gradient = slot.parameter->value.grad();
  slot.first.mul_(options_.muon_momentum).add_(gradient);
  const at::Tensor direction = options_.nesterov ? gradient + options_.muon_momentum * slot.first : slot.first;
  const std::vector<at::Tensor> sources = muon_blocks(config_, slot.parameter->role, direction);
  const std::vector<at::Tensor> targets = muon_blocks(config_, slot.parameter->role, slot.parameter->value);
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto longer = static_cast<double>(std::max(sources[i].size(1), sources[i].size(2)));
    const double scale = kUpdateRms * std::sqrt(longer);
    at::Tensor target = targets[i];
    target.add_(orthogonalize(sources[i]), -learning_rate * scale);
  }
}

void Optimizer::adamw_step(Slot& slot, double learning_rate) {
  const at::Tensor gradient = slot.parameter->value.grad();
  const auto t = static_cast<double>(num_steps_);
  slot.first.mul_(options_.beta1).add_(gradient, 1.0 - options_.beta1);
  slot.second.mul_(options_.beta2).addcmul_(gradient, gradient, 1.0 - options_.beta2);
  const double first_correction = 1.0 - std::pow(options_.beta1, t);
  const double second_correction = 1.0 - std::pow(options_.beta2, t);
  const at::Tensor denominator = (slot.second / second_correction).sqrt() + options_.adam_eps;
  slot.parameter->value.addcdiv_(slot.first, denominator, -learning_rate / first_correction);
}

void Optimizer::zero_grad() {
  for (Slot& slot : slots_) slot.parameter->value.mutable_grad() = at::Tensor();
}

double Optimizer::clip_gradients(double max_norm) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> squares;
  for (const Slot& slot : slots_) {
    const at::Tensor gradient = slot.parameter->value.grad();
    if (gradient.defined()) squares.push_back(gradient.square().sum().to(at::kDouble));
  }
  if (squares.empty()) return 0.0;
  const double norm = std::sqrt(at::stack(squares).sum().item<double>());
  if (!std::isfinite(norm) || norm <= max_norm) return norm;
  for (const Slot& slot : slots_) {
    at::Tensor gradient = slot.parameter->value.grad();
    if (gradient.defined()) gradient.mul_(max_norm / norm);
  }
  return norm;
}

std::vector<std::pair<std::string, at::Tensor>> Optimizer::state() const {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (const Slot& slot : slots_) {
    const std::string& name = slot.parameter->name;
    named.emplace_back(cat(name, slot.muon ? ".momentum" : ".exp_avg"), slot.first);
    if (!slot.muon) named.emplace_back(cat(name, ".exp_avg_sq"), slot.second);
  }
  return named;
}

}  // namespace tandem::train

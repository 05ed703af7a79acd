#include "train/optim/optimizer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/cat.h"
#include "train/optim/muon.h"

namespace tandem::train {
namespace {

constexpr double kUpdateRms = 0.2;
constexpr int64_t kBatchElements = int64_t{1} << 26;  // of one batch of blocks: bounds the memory of a step

// Blocks of one shape that wait for their update.
struct BlockBatch {
  std::vector<at::Tensor> sources, targets;  // [n, rows, cols]
  int64_t elements = 0;

  void add(const at::Tensor& source, const at::Tensor& target) {
    sources.push_back(source);
    targets.push_back(target);
    elements += source.numel();
  }

  void apply(double learning_rate) {
    if (sources.empty()) return;
    const auto longer = static_cast<double>(std::max(sources[0].size(1), sources[0].size(2)));
    const double scale = kUpdateRms * std::sqrt(longer);
    const at::Tensor direction = orthogonalize(sources.size() == 1 ? sources[0] : at::cat(sources));
    int64_t begin = 0;
    for (at::Tensor& target : targets) {
      target.add_(direction.narrow(0, begin, target.size(0)), -learning_rate * scale);
      begin += target.size(0);
    }
    *this = BlockBatch();
  }
};

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
  std::vector<Slot*> matrices, rest;
  std::vector<at::Tensor> decaying;
  for (Slot& slot : slots_) {
    if (!slot.parameter->value.grad().defined()) continue;
    if (slot.decays) decaying.push_back(slot.parameter->value);
    (slot.muon ? matrices : rest).push_back(&slot);
  }
  if (!decaying.empty()) at::_foreach_mul_(decaying, 1.0 - learning_rate * options_.weight_decay);
  if (!matrices.empty()) muon_step(matrices, learning_rate);
  if (!rest.empty()) adamw_step(rest, learning_rate);
}

void Optimizer::muon_step(const std::vector<Slot*>& slots, double learning_rate) {
  std::vector<at::Tensor> momenta, gradients;
  for (const Slot* slot : slots) {
    momenta.push_back(slot->first);
    gradients.push_back(slot->parameter->value.grad());
  }
  at::_foreach_mul_(momenta, options_.muon_momentum);
  at::_foreach_add_(momenta, gradients);
  std::vector<at::Tensor> directions = momenta;
  if (options_.nesterov) {
    directions = at::_foreach_mul(momenta, options_.muon_momentum);
    at::_foreach_add_(directions, gradients);
  }
  // Blocks of one shape, whichever parameters they are of, make one batch of products.
  std::map<std::pair<int64_t, int64_t>, BlockBatch> batches;
  for (size_t i = 0; i < slots.size(); ++i) {
    const Parameter& parameter = *slots[i]->parameter;
    const std::vector<at::Tensor> sources = muon_blocks(config_, parameter.role, directions[i]);
    const std::vector<at::Tensor> targets = muon_blocks(config_, parameter.role, parameter.value);
    for (size_t n = 0; n < sources.size(); ++n) {
      BlockBatch& batch = batches[{sources[n].size(1), sources[n].size(2)}];
      batch.add(sources[n], targets[n]);
      if (batch.elements >= kBatchElements) batch.apply(learning_rate);
    }
  }
  for (auto& [shape, batch] : batches) batch.apply(learning_rate);
}

void Optimizer::adamw_step(const std::vector<Slot*>& slots, double learning_rate) {
  std::vector<at::Tensor> values, gradients, first, second;
  for (const Slot* slot : slots) {
    values.push_back(slot->parameter->value);
    gradients.push_back(slot->parameter->value.grad());
    first.push_back(slot->first);
    second.push_back(slot->second);
  }
  const auto t = static_cast<double>(num_steps_);
  const double first_correction = 1.0 - std::pow(options_.beta1, t);
  const double second_correction = 1.0 - std::pow(options_.beta2, t);
  at::_foreach_mul_(first, options_.beta1);
  at::_foreach_add_(first, gradients, 1.0 - options_.beta1);
  at::_foreach_mul_(second, options_.beta2);
  at::_foreach_addcmul_(second, gradients, gradients, 1.0 - options_.beta2);
  std::vector<at::Tensor> denominator = at::_foreach_div(second, second_correction);
  at::_foreach_sqrt_(denominator);
  at::_foreach_add_(denominator, options_.adam_eps);
  at::_foreach_addcdiv_(values, first, denominator, -learning_rate / first_correction);
}

void Optimizer::zero_grad() {
  for (Slot& slot : slots_) slot.parameter->value.mutable_grad() = at::Tensor();
}

double Optimizer::clip_gradients(double max_norm) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const Slot& slot : slots_) {
    if (slot.parameter->value.grad().defined()) gradients.push_back(slot.parameter->value.grad());
  }
  if (gradients.empty()) return 0.0;
  const double norm = at::stack(at::_foreach_norm(gradients)).to(at::kDouble).norm().item<double>();
  if (!std::isfinite(norm) || norm <= max_norm) return norm;
  at::_foreach_mul_(gradients, max_norm / norm);
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

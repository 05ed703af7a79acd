// train/run/router_balancer.h: Quantile Balancing over the micro-batches of a step, and the load of the experts.
//
//   begin_step(), then add() for each micro-batch, then update() once: the new bias holds from the next step on.
//   Padding is not counted. Nothing here waits for the device. Source: systems.md §9.1.
//   Threading: the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "train/modules/train_model.h"
#include "train/optim/quantile_balancing.h"
#include "train/run/recipe.h"

namespace tandem::train {

class RouterBalancer {
 public:
  // `model` outlives this.
  RouterBalancer(TrainModel& model, BalancingKind kind);

  void begin_step();
  // `valid_rows`: those of the micro-batch that count; undefined: all.
  void add(const std::vector<Routing>& routing, const at::Tensor& valid_rows);
  void update();

  int64_t num_moe_layers() const { return static_cast<int64_t>(layers_.size()); }
  // Largest over mean number of tokens of an expert in this step, [MoE layers] double, on the model's device.
  at::Tensor load() const;

 private:
  struct Layer {
    int64_t index = 0;
    at::Tensor bias;    // the parameter
    at::Tensor counts;  // [E] int64, tokens of each expert
    std::optional<BiasHistogram> histogram;
    std::vector<at::Tensor> scores, cutoffs;  // kExact
  };

  BalancingKind kind_;
  int64_t experts_per_token_;
  std::vector<Layer> layers_;
};

}  // namespace tandem::train

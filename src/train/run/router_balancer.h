// train/run/router_balancer.h: Quantile Balancing over the micro-batches of a step, and the load of the experts.
//
//   begin_step(), then add() for each micro-batch, then update() once: the new bias holds from the next step on.
//   Padding is not counted. update() also adds the step's counts to those of the window, kLoadWindowSteps steps after
//   which the next one begins; a step that is not taken is in no window. Nothing but the read of a complete window
//   waits for the device. Source: systems.md §9.1.
//   Threading: the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/modules/train_model.h"
#include "train/optim/quantile_balancing.h"
#include "train/run/recipe.h"

namespace tandem::train {

inline constexpr int64_t kLoadWindowSteps = 64;

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
  // The same of the tokens of a whole window, after the update() that completes it; else nothing.
  std::optional<std::vector<double>> window_load() const;

  // What a checkpoint holds: the window that has begun, [MoE layers, E] and a number of steps. Copying into the tensors
  // restores it.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

 private:
  struct Layer {
    int64_t index = 0;
    at::Tensor bias;  // the parameter
    std::optional<BiasHistogram> histogram;
    std::vector<at::Tensor> scores, cutoffs;  // kExact
  };

  BalancingKind kind_;
  int64_t experts_per_token_;
  std::vector<Layer> layers_;
  at::Tensor counts_;         // [MoE layers, E] int64, tokens of each expert in this step
  at::Tensor window_counts_;  // the same of the steps of the window
  at::Tensor window_steps_;   // [] int64, on the CPU
};

}  // namespace tandem::train

// train/optim/optimizer.h: one optimiser step: Per-Head Muon for matrices, AdamW for the rest.
//
//   Muon    m ← μ m + G;  u = G + μ m;  θ ← θ − lr (0.2 √max(rows, cols) orthogonalize(u) + decay θ), a block at a time
//   AdamW   the usual, bias-corrected; decay for embedding and head, none for norms, gates' vectors and conv taps
//   Small tensors go through LibTorch's operators on lists, and Muon blocks of one shape through one batch of products.
//   The scale gives a Muon update the RMS of an AdamW update, so that both take one learning rate (Moonlight).
//   Which parameters: train/optim/muon.h. A parameter without a gradient (an expert that no token chose has one: zeros)
//   keeps its value and state.
//   State is float (double for double parameters), on the parameter's device, named for saving and restoring.
//   Threading: one thread; between a backward and the next forward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "config/model_config.h"
#include "train/modules/train_model.h"

namespace tandem::train {

struct OptimizerOptions {
  double muon_momentum = 0.95;
  bool nesterov = true;
  double beta1 = 0.9, beta2 = 0.95, adam_eps = 1e-8;
  double weight_decay = 0.1;
};

class Optimizer {
 public:
  // `parameters` outlives this.
  Optimizer(const ModelConfig& config, std::vector<Parameter>& parameters, const OptimizerOptions& options);

  void step(double learning_rate);
  void zero_grad();
  // √Σ‖G‖² before scaling every gradient by min(1, max_norm / it). A norm that is not finite is returned and nothing is
  // scaled: the caller must not take the step.
  double clip_gradients(double max_norm);

  int64_t num_steps() const { return num_steps_; }
  // "<parameter>.momentum", "<parameter>.exp_avg", "<parameter>.exp_avg_sq": live tensors, in parameter order.
  std::vector<std::pair<std::string, at::Tensor>> state() const;
  // After the state's tensors were filled from a saved run.
  void set_num_steps(int64_t num_steps) { num_steps_ = num_steps; }

 private:
  struct Slot {
    Parameter* parameter = nullptr;
    bool muon = false;
    bool decays = false;
    at::Tensor first, second;  // momentum; or exp_avg and exp_avg_sq
  };
  void muon_step(const std::vector<Slot*>& slots, double learning_rate);
  void adamw_step(const std::vector<Slot*>& slots, double learning_rate);

  ModelConfig config_;
  OptimizerOptions options_;
  std::vector<Slot> slots_;
  int64_t num_steps_ = 0;
};

}  // namespace tandem::train

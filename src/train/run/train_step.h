// train/run/train_step.h: the arithmetic of one optimiser step: gradients over micro-batches, clipping, update.
//
//   The loss is the mean over the trained tokens of the whole step, however they are dealt out to micro-batches. Logits
//   are made for a piece of the trained rows at a time, forward and backward, and never all at once.
//   An MTP layer adds mtp_loss_weight times the sum of its losses over the same number of tokens (DeepSeek-V3, which
//   divides by the length of the sequence too).
//   One wait for the device a step: the gradient norm, read back with the loss.
//   Threading: the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "train/modules/train_model.h"
#include "train/optim/optimizer.h"
#include "train/run/router_balancer.h"
#include "train/run/step_batch.h"

namespace tandem::train {

struct StepNumbers {
  double loss = 0;                  // nats a trained token
  double mtp_loss = 0;              // of the token after next, summed likewise and not weighted; 0 without MTP layer
  double grad_norm = 0;             // before clipping
  std::vector<double> expert_load;  // of each MoE layer: largest over mean
};

class TrainStep {
 public:
  // All outlive this. `forward.routing` is not used.
  TrainStep(TrainModel& model, Optimizer& optimizer, RouterBalancer& balancer, const ForwardOptions& forward,
            at::Device device, double clip_norm, double mtp_loss_weight)
      : model_(model),
        optimizer_(optimizer),
        balancer_(balancer),
        forward_(forward),
        device_(device),
        clip_norm_(clip_norm),
        mtp_loss_weight_(mtp_loss_weight) {}

  // Leaves the clipped gradients in the parameters and changes nothing else.
  StepNumbers gradients(const StepBatch& batch);
  // The optimiser's step and the routers' new bias. Once after gradients(), whose numbers are finite.
  void apply(double learning_rate);

  // Sum of the losses of the trained tokens, in nats.
  double loss_sum(const MicroBatch& batch) const;

  // Norm of each parameter's gradient as it was before clipping; `grad_norm` is that of the step.
  std::vector<std::pair<std::string, double>> gradient_norms(double grad_norm) const;

 private:
  at::Tensor accumulate(const MicroBatch& batch, int64_t num_trained);
  std::pair<at::Tensor, at::Tensor> head_gradients(const at::Tensor& hidden, const at::Tensor& targets, double weight,
                                                   int64_t num_trained) const;
  int64_t rows_of_piece() const;

  TrainModel& model_;
  Optimizer& optimizer_;
  RouterBalancer& balancer_;
  ForwardOptions forward_;
  at::Device device_;
  double clip_norm_;
  double mtp_loss_weight_;
};

}  // namespace tandem::train

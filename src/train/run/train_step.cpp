#include "train/run/train_step.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "train/modules/functional.h"

namespace tandem::train {
namespace {

constexpr int64_t kLogitsOfPiece = int64_t{1} << 26;

at::Tensor mean_loss(const at::Tensor& logits, const at::Tensor& targets) {
  return cross_entropy(
      logits, targets,
      at::ones({targets.size(0)},
               logits.options().dtype(logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat)));
}

}  // namespace

int64_t TrainStep::rows_of_piece() const {
  return std::max<int64_t>(1, kLogitsOfPiece / std::max<int64_t>(1, model_.config().vocab_size));
}

// Adds the gradients of one micro-batch; its part of the step's loss, on the device.
at::Tensor TrainStep::accumulate(const MicroBatch& host_batch, int64_t num_trained) {
  const MicroBatch batch = to_device(host_batch, device_);
  std::vector<Routing> routing;
  ForwardOptions options = forward_;
  options.routing = &routing;
  at::Tensor loss = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device_));
  const int64_t rows = batch.num_trained();
  if (rows == 0) {  // its tokens count for the routers all the same
    const c10::NoGradGuard no_grad;
    model_.hidden(batch.tokens, batch.layout, options);
    balancer_.add(routing, batch.valid_rows);
    return loss;
  }
  const at::Tensor hidden = model_.hidden(batch.tokens, batch.layout, options).index_select(0, batch.trained_rows);
  balancer_.add(routing, batch.valid_rows);
  std::vector<at::Tensor> gradients;
  for (int64_t begin = 0; begin < rows; begin += rows_of_piece()) {
    const int64_t count = std::min(rows_of_piece(), rows - begin);
    const at::Tensor piece = hidden.detach().narrow(0, begin, count).requires_grad_(true);
    const double share = static_cast<double>(count) / static_cast<double>(num_trained);
    const at::Tensor part = mean_loss(model_.head(piece), batch.targets.narrow(0, begin, count)) * share;
    part.backward();
    loss += part.detach();
    gradients.push_back(piece.grad());
  }
  hidden.backward(gradients.size() == 1 ? gradients.front() : at::cat(gradients));
  return loss;
}

StepNumbers TrainStep::gradients(const StepBatch& batch) {
  optimizer_.zero_grad();
  balancer_.begin_step();
  at::Tensor loss = at::zeros({1}, at::TensorOptions().dtype(at::kDouble).device(device_));
  for (const MicroBatch& micro : batch.micro_batches) loss += accumulate(micro, batch.num_trained);
  StepNumbers numbers;
  numbers.grad_norm = optimizer_.clip_gradients(clip_norm_);
  const at::Tensor read = at::cat({loss, balancer_.load().to(device_)}).cpu();
  const double* values = read.data_ptr<double>();
  numbers.loss = values[0];
  numbers.expert_load.assign(values + 1, values + read.size(0));
  return numbers;
}

void TrainStep::apply(double learning_rate) {
  optimizer_.step(learning_rate);
  balancer_.update();
}

double TrainStep::loss_sum(const MicroBatch& host_batch) const {
  const c10::NoGradGuard no_grad;
  const MicroBatch batch = to_device(host_batch, device_);
  const int64_t rows = batch.num_trained();
  at::Tensor sum = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device_));
  const at::Tensor hidden = model_.hidden(batch.tokens, batch.layout, forward_).index_select(0, batch.trained_rows);
  for (int64_t begin = 0; begin < rows; begin += rows_of_piece()) {
    const int64_t count = std::min(rows_of_piece(), rows - begin);
    const at::Tensor logits = model_.head(hidden.narrow(0, begin, count));
    sum += mean_loss(logits, batch.targets.narrow(0, begin, count)).to(at::kDouble) * static_cast<double>(count);
  }
  return sum.item<double>();
}

std::vector<std::pair<std::string, double>> TrainStep::gradient_norms(double grad_norm) const {
  const c10::NoGradGuard no_grad;
  const double clipped_by = std::isfinite(grad_norm) ? std::max(1.0, grad_norm / clip_norm_) : 1.0;
  std::vector<std::pair<std::string, double>> norms;
  for (const Parameter& parameter : model_.parameters()) {
    const at::Tensor gradient = parameter.value.grad();
    if (!gradient.defined()) continue;
    norms.emplace_back(parameter.name, gradient.to(at::kDouble).norm().item<double>() * clipped_by);
  }
  return norms;
}

}  // namespace tandem::train

#include "train/run/train_step.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

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

// Of each row that predicts in the MTP layer: it is the row before a trained one of the same document, and its target
// is that row's.
struct MtpTargets {
  at::Tensor next_tokens;  // [T]
  at::Tensor rows, targets;
};

MtpTargets mtp_targets(const MicroBatch& host_batch, at::Device device) {
  const at::Tensor& rows = host_batch.trained_rows;
  const at::Tensor inner = host_batch.layout.position.index_select(0, rows).gt(0).nonzero().squeeze(1);
  const auto moved = [&](const at::Tensor& x) { return x.to(device, x.scalar_type(), /*non_blocking=*/true); };
  return {moved(host_batch.tokens.roll(-1)), moved(rows.index_select(0, inner) - 1),
          moved(host_batch.targets.index_select(0, inner))};
}

}  // namespace

int64_t TrainStep::rows_of_piece() const {
  return std::max<int64_t>(1, kLogitsOfPiece / std::max<int64_t>(1, model_.config().vocab_size));
}

// Adds the head's gradients of Σ loss(rows) · weight / num_trained; that sum, and the gradient of the rows.
std::pair<at::Tensor, at::Tensor> TrainStep::head_gradients(const at::Tensor& hidden, const at::Tensor& targets,
                                                            double weight, int64_t num_trained) const {
  at::Tensor loss = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device_));
  std::vector<at::Tensor> gradients;
  for (int64_t begin = 0; begin < hidden.size(0); begin += rows_of_piece()) {
    const int64_t count = std::min(rows_of_piece(), hidden.size(0) - begin);
    const at::Tensor piece = hidden.detach().narrow(0, begin, count).requires_grad_(true);
    const double share = weight * static_cast<double>(count) / static_cast<double>(num_trained);
    const at::Tensor part = mean_loss(model_.head(piece), targets.narrow(0, begin, count)) * share;
    part.backward();
    loss += part.detach();
    gradients.push_back(piece.grad());
  }
  return {loss, gradients.size() == 1 ? gradients.front() : at::cat(gradients)};
}

// Adds the gradients of one micro-batch; its parts of the step's losses, on the device: [text, MTP].
at::Tensor TrainStep::accumulate(const MicroBatch& host_batch, int64_t num_trained) {
  const MicroBatch batch = to_device(host_batch, device_);
  const bool mtp = has_mtp(model_.config());
  std::vector<Routing> routing;
  at::Tensor before_norm;
  ForwardOptions options = forward_;
  options.routing = &routing;
  options.before_norm = &before_norm;
  at::Tensor losses = at::zeros({2}, at::TensorOptions().dtype(at::kDouble).device(device_));
  const bool trained = batch.num_trained() > 0;  // if not, its tokens count for the routers all the same
  const c10::AutoGradMode with_gradient(trained);
  const at::Tensor hidden = model_.hidden(batch.tokens, batch.layout, options);
  const MtpTargets ahead = mtp ? mtp_targets(host_batch, device_) : MtpTargets();
  const at::Tensor mtp_hidden =
      mtp ? model_.mtp_hidden(before_norm, ahead.next_tokens, batch.layout, options) : at::Tensor();
  balancer_.add(routing, batch.valid_rows);
  if (!trained) return losses;

  std::vector<at::Tensor> ends = {hidden.index_select(0, batch.trained_rows)};
  auto [loss, gradient] = head_gradients(ends[0], batch.targets, 1.0, num_trained);
  std::vector<at::Tensor> gradients = {gradient};
  losses.select(0, 0).copy_(loss);
  if (mtp && mtp_loss_weight_ > 0 && ahead.rows.size(0) > 0) {
    ends.push_back(mtp_hidden.index_select(0, ahead.rows));
    auto [mtp_loss, mtp_gradient] = head_gradients(ends[1], ahead.targets, mtp_loss_weight_, num_trained);
    gradients.push_back(mtp_gradient);
    losses.select(0, 1).copy_(mtp_loss / mtp_loss_weight_);
  }
  torch::autograd::backward(ends, gradients);
  return losses;
}

StepNumbers TrainStep::gradients(const StepBatch& batch) {
  optimizer_.zero_grad();
  balancer_.begin_step();
  at::Tensor losses = at::zeros({2}, at::TensorOptions().dtype(at::kDouble).device(device_));
  for (const MicroBatch& micro : batch.micro_batches) losses += accumulate(micro, batch.num_trained);
  StepNumbers numbers;
  numbers.grad_norm = optimizer_.clip_gradients(clip_norm_);
  const at::Tensor read = at::cat({losses, balancer_.load().to(device_)}).cpu();
  const double* values = read.data_ptr<double>();
  numbers.loss = values[0];
  numbers.mtp_loss = values[1];
  numbers.expert_load.assign(values + 2, values + read.size(0));
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

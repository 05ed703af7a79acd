// train/modules/cross_entropy.cpp: the loss over the vocabulary. Forward and backward pass work on blocks of rows, so
// that no second matrix of the logits' size is made but their gradient, in their type.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "train/modules/functional.h"
#include "train/modules/kernel_calls.h"

namespace tandem::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kBlockRows = 4096;

struct RowLosses {
  at::Tensor loss, log_sum;  // [T] of the wide type
};

RowLosses row_losses(const at::Tensor& logits, const at::Tensor& target) {
  if (kernels::take(logits)) {
    const auto [loss, log_sum] = kernels::cross_entropy_forward(logits, target);
    return {loss, log_sum};
  }
  variable_list losses, sums;
  for (int64_t begin = 0; begin < logits.size(0); begin += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, logits.size(0) - begin);
    const at::Tensor wide = widen(logits.narrow(0, begin, rows));
    sums.push_back(wide.logsumexp(1));
    losses.push_back(sums.back() - wide.gather(1, target.narrow(0, begin, rows).unsqueeze(1)).squeeze(1));
  }
  if (losses.empty()) return {widen(logits.select(1, 0)), widen(logits.select(1, 0))};
  return {at::cat(losses), at::cat(sums)};
}

// (softmax − one-hot) ⊙ weight of the row; zeros where that is 0, whatever the row holds.
at::Tensor logit_gradient(const at::Tensor& logits, const at::Tensor& target, const at::Tensor& log_sum,
                          const at::Tensor& row_weight) {
  if (kernels::take(logits)) return kernels::cross_entropy_backward(logits, target, log_sum, row_weight);
  at::Tensor gradient = at::empty_like(logits);
  for (int64_t begin = 0; begin < logits.size(0); begin += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, logits.size(0) - begin);
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, rows); };
    const at::Tensor weight = part(row_weight).unsqueeze(1);
    at::Tensor share = (widen(part(logits)) - part(log_sum).unsqueeze(1)).exp() * weight;
    share.scatter_add_(1, part(target).unsqueeze(1), -weight);
    part(gradient).copy_(share.masked_fill(weight == 0, 0));
  }
  return gradient;
}

class CrossEntropy : public torch::autograd::Function<CrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& target,
                            const at::Tensor& mask) {
    const at::Tensor dense = logits.contiguous();
    const RowLosses rows = row_losses(dense, target.contiguous());
    const at::Tensor weight = mask.to(rows.loss.scalar_type());
    const at::Tensor total = weight.sum();
    const at::Tensor divisor = at::where(total > 0, total, at::ones_like(total));
    const at::Tensor row_weight = at::where(weight > 0, weight, at::zeros_like(weight)) / divisor;
    ctx->save_for_backward({dense, target.contiguous(), rows.log_sum, row_weight});
    // where(): a row that does not count may hold a loss that is not finite.
    return at::where(weight > 0, rows.loss * weight, at::zeros_like(weight)).sum() / divisor;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradient) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor row_weight = (saved[3] * gradient[0]).contiguous();
    return {logit_gradient(saved[0], saved[1], saved[2], row_weight), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, const at::Tensor& mask) {
  return CrossEntropy::apply(logits, target, mask);
}

}  // namespace tandem::train

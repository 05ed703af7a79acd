#include "train/optim/quantile_balancing.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

namespace tandem::train {

at::Tensor centred(const at::Tensor& bias) { return bias - bias.mean(); }

at::Tensor exact_quantile_bias(const at::Tensor& scores, const at::Tensor& cutoff, int64_t k) {
  const at::Tensor required = cutoff.to(at::kDouble).unsqueeze(1) - scores.to(at::kDouble);
  const int64_t above = required.size(0) * k / required.size(1);  // ⌊q⌋
  return std::get<0>(required.sort(0)).select(0, above);
}

BiasHistogram::BiasHistogram(const at::Tensor& bias, int64_t num_bins) {
  const at::Tensor values = bias.detach().to(at::kDouble);
  low_ = values.min() - 1.0;
  width_ = (values.max() + 1.0 - low_) / static_cast<double>(num_bins);
  counts_ = at::zeros({bias.size(0), num_bins}, bias.options().dtype(at::kLong).requires_grad(false));
}

double BiasHistogram::bin_width() const { return width_.item<double>(); }

void BiasHistogram::add(const at::Tensor& scores, const at::Tensor& cutoff, const at::Tensor& mask) {
  const c10::NoGradGuard no_grad;
  const at::Tensor required = cutoff.to(at::kDouble).unsqueeze(1) - scores.to(at::kDouble);
  const at::Tensor bin = ((required - low_) / width_).floor().to(at::kLong).clamp(0, counts_.size(1) - 1);
  const at::Tensor counted = mask.defined() ? mask.to(at::kLong).unsqueeze(1).expand_as(bin) : at::ones_like(bin);
  counts_.scatter_add_(1, bin.t(), counted.t());
}

at::Tensor BiasHistogram::solve(int64_t k) const {
  const at::Tensor cumulative = counts_.cumsum(1);
  const at::Tensor tokens = cumulative.select(1, cumulative.size(1) - 1).select(0, 0).to(at::kDouble);
  const at::Tensor quota = tokens * static_cast<double>(k) / static_cast<double>(counts_.size(0));
  // The first bin whose cumulative count exceeds q: as many bins as do not.
  const at::Tensor bin = (cumulative.to(at::kDouble) <= quota).sum(1, true).clamp_max(counts_.size(1) - 1);
  const at::Tensor in_bin = counts_.gather(1, bin).to(at::kDouble);
  const at::Tensor before = cumulative.gather(1, bin).to(at::kDouble) - in_bin;
  const at::Tensor share = ((quota - before) / in_bin.clamp_min(1.0)).clamp(0.0, 1.0);
  return (low_ + (bin.to(at::kDouble) + share) * width_).squeeze(1);
}

}  // namespace tandem::train

#include "train/run/loss_guard.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/cat.h"

namespace tandem::train {

LossGuard::LossGuard(double factor, std::vector<double> recent) : factor_(factor), recent_(std::move(recent)) {
  if (recent_.size() > kWindow) recent_.erase(recent_.begin(), recent_.end() - kWindow);
}

std::optional<std::string> LossGuard::refusal(double loss, double grad_norm) const {
  const auto text = [](double x) { return std::isnan(x) ? std::string("not a number") : cat(x); };
  if (!std::isfinite(loss)) return cat("the loss is ", text(loss));
  if (!std::isfinite(grad_norm)) return cat("the gradient norm is ", text(grad_norm), " at a loss of ", loss);
  if (recent_.empty()) return std::nullopt;
  std::vector<double> sorted = recent_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  const double limit = factor_ * std::max(1.0, *middle);
  if (loss <= limit) return std::nullopt;
  return cat("the loss is ", loss, ", above ", limit, ": explode_factor ", factor_, " times the recent ", *middle);
}

void LossGuard::accept(double loss) {
  if (recent_.size() == kWindow) recent_.erase(recent_.begin());
  recent_.push_back(loss);
}

}  // namespace tandem::train

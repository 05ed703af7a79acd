// train/run/loss_guard.h: tells a step that ruins a run from one that does not, by its loss and gradient norm.
//
//   Refused: a loss or norm that is not finite, and a loss above `factor` times the median of the last kWindow accepted
//   ones, or of 1 nat where the median is below that. No torch in here. Threading: one thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace tandem::train {

class LossGuard {
 public:
  static constexpr size_t kWindow = 32;

  // `recent`: the accepted losses of a run that goes on, oldest first.
  explicit LossGuard(double factor, std::vector<double> recent = {});

  // What is wrong with the step; nothing when it may be taken.
  std::optional<std::string> refusal(double loss, double grad_norm) const;
  void accept(double loss);
  const std::vector<double>& recent() const { return recent_; }

 private:
  double factor_;
  std::vector<double> recent_;  // oldest first
};

}  // namespace tandem::train

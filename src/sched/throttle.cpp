#include "sched/throttle.h"

#include <algorithm>

namespace tandem {

Throttle::Throttle(double high_utilisation, double low_utilisation, int64_t max_running)
    : high_utilisation_(high_utilisation),
      low_utilisation_(low_utilisation),
      max_running_(max_running),
      limit_(max_running) {}

void Throttle::update(const ThrottleSignals& signals) {
  steps_since_preemption_ = signals.has_preempted ? 0 : std::min(steps_since_preemption_ + 1, kPressureSteps);
  const bool is_pressed = signals.utilisation > high_utilisation_ || steps_since_preemption_ < kPressureSteps;
  if (is_pressed) {
    calm_steps_ = 0;
    // Above the limit nobody is admitted: cutting it further would only make the way back longer.
    if (limit_ >= signals.running) limit_ = std::max<int64_t>(1, signals.running * 4 / 5);
    return;
  }
  if (signals.queued == 0) return;
  if (signals.utilisation < low_utilisation_) {
    calm_steps_ = 0;
    limit_ += std::max<int64_t>(1, (limit_ + 19) / 20);
  } else if (++calm_steps_ >= kProbeSteps) {
    calm_steps_ = 0;
    ++limit_;
  }
  limit_ = std::min(limit_, max_running_);
}

}  // namespace tandem

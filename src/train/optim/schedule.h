// train/optim/schedule.h: linear warm-up over the first part of a run, then a cosine down to a share of the peak.
// No torch in here. Source: systems.md §9.3.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace tandem::train {

struct LearningRateSchedule {
  double peak = 0;
  int64_t num_steps = 0;
  double warmup_share = 0.01;
  double final_share = 0.1;  // of the peak, reached at the last step

  // step counts from 0; the first step takes peak / warm-up steps, not 0.
  double at(int64_t step) const {
    const int64_t warmup = std::max<int64_t>(1, std::llround(warmup_share * static_cast<double>(num_steps)));
    if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
    const int64_t span = std::max<int64_t>(1, num_steps - 1 - warmup);
    const double progress = std::min(1.0, static_cast<double>(step - warmup) / static_cast<double>(span));
    const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    return peak * (final_share + (1.0 - final_share) * cosine);
  }
};

}  // namespace tandem::train

// evaluate/wilson.h: how far a share of successes may be off: Wilson's score interval at 95 %.
// Source: Wilson, Probable inference, the law of succession, and statistical inference (1927).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tandem {

struct ShareInterval {
  double low = 0;
  double high = 1;
};

// Of `successes` in `trials`; [0, 1] without trials.
inline ShareInterval wilson_interval(int64_t successes, int64_t trials) {
  if (trials <= 0) return {};
  constexpr double kZ = 1.959963984540054;  // of the normal distribution, two-sided 95 %
  const auto n = static_cast<double>(trials);
  const double share = static_cast<double>(successes) / n;
  const double denominator = 1 + kZ * kZ / n;
  const double centre = (share + kZ * kZ / (2 * n)) / denominator;
  const double half = kZ / denominator * std::sqrt(share * (1 - share) / n + kZ * kZ / (4 * n * n));
  return {successes == 0 ? 0 : std::max(0.0, centre - half), successes == trials ? 1 : std::min(1.0, centre + half)};
}

}  // namespace tandem

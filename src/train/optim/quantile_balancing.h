// train/optim/quantile_balancing.h: the router bias that gives every expert its share of a batch.
//
//   Over m tokens with scores s_ij and cutoffs α_i (the (k+1)-th largest of s_i + b), r_ij = α_i − s_ij is the bias
//   that puts expert j at the cutoff of token i. With q = m k / n, b_j' is the (q+1)-th smallest of r_:j: exactly q
//   tokens lie above. Then b' loses its mean (centred()), which no selection sees. It holds from the next step on.
//   Histogram form: counts of r over uniform bins on [b_min − 1, b_max + 1], a range that r cannot leave; counts of
//   micro-batches and ranks add up, so the result does not depend on how tokens were dealt out. b_j is taken, linearly,
//   inside the bin that holds the (q+1)-th smallest: within one bin width of the exact form. Source: Kimi K3 report;
//   systems.md §9.1.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tandem::train {

inline constexpr int64_t kBalancingBins = 1000;

// b − mean(b).
at::Tensor centred(const at::Tensor& bias);

// scores [m, E], cutoff [m] of real tokens alone; k < E experts a token → b' [E] in double, not centred.
at::Tensor exact_quantile_bias(const at::Tensor& scores, const at::Tensor& cutoff, int64_t k);

class BiasHistogram {
 public:
  // `bias` [E] is what the scores' cutoffs were made with.
  explicit BiasHistogram(const at::Tensor& bias, int64_t num_bins = kBalancingBins);

  // Counts the tokens where `mask` [m] is true; an undefined mask counts all.
  void add(const at::Tensor& scores, const at::Tensor& cutoff, const at::Tensor& mask);
  // [E, bins] int64: sum it over ranks before solve().
  at::Tensor& counts() { return counts_; }
  double bin_width() const;
  // b' [E] in double, not centred. At least one token was counted.
  at::Tensor solve(int64_t k) const;

 private:
  at::Tensor low_, width_;  // scalars in double, on the device: counting does not wait for it
  at::Tensor counts_;
};

}  // namespace tandem::train

// sched/step_time.h: seconds of a step, learned from those that ran: t = a + b · rows + c · Σ rows · context.
//
//   The constant is what a step costs whatever it does (weights read once), b the work of a row, c that of attention
//   over what the row sees. Fitted with forgetting, coefficients never below zero; before the first steps it predicts
//   zero. Threading: engine thread only.
#pragma once

#include <array>
#include <cstdint>

namespace tandem {

class StepTime {
 public:
  struct Work {
    double rows = 0;
    double row_context = 0;  // Σ over rows of the tokens it attends to
  };

  double predict(const Work& work) const;
  void observe(const Work& work, double seconds);
  // Seconds for prefilling tokens [begin, end) in steps of `chunk` rows.
  double predict_prefill(int64_t begin, int64_t end, int64_t chunk) const;
  int64_t num_observed() const { return num_observed_; }

 private:
  void solve();

  std::array<double, 9> moments_ = {};  // of (1, rows, row_context), weighted
  std::array<double, 3> products_ = {};
  std::array<double, 3> coefficients_ = {};
  int64_t num_observed_ = 0;
};

}  // namespace tandem

#include "sched/step_time.h"

#include <algorithm>
#include <cmath>

namespace tandem {
namespace {

constexpr double kForgetting = 0.995;     // an observation counts for about 200 steps
constexpr double kStayWeight = 1e-6;      // how strongly what the steps do not tell apart stays where it is
constexpr int64_t kTrustedAfter = 16;     // observations
constexpr double kLargestSurprise = 8;    // a step cannot count for more than this many times the expected
constexpr int kTerms = 3;                 // 1, rows, row_context
constexpr double kSmallestPivot = 1e-14;  // of a matrix with ones on its diagonal

using Vector = std::array<double, kTerms>;
using Matrix = std::array<double, kTerms * kTerms>;

// Solves m x = v over the terms in `subset` (bits), the others zero. False: singular.
bool solve_subset(Matrix m, Vector v, unsigned subset, Vector& x) {
  x = {};
  for (int i = 0; i < kTerms; ++i) {
    if (!(subset >> i & 1U)) continue;
    if (m[i * kTerms + i] < kSmallestPivot) return false;
    for (int r = i + 1; r < kTerms; ++r) {
      if (!(subset >> r & 1U)) continue;
      const double factor = m[r * kTerms + i] / m[i * kTerms + i];
      for (int c = i; c < kTerms; ++c) m[r * kTerms + c] -= factor * m[i * kTerms + c];
      v[r] -= factor * v[i];
    }
  }
  for (int i = kTerms - 1; i >= 0; --i) {
    if (!(subset >> i & 1U)) continue;
    double sum = v[i];
    for (int c = i + 1; c < kTerms; ++c) sum -= m[i * kTerms + c] * x[c];  // x is zero outside the subset
    x[i] = sum / m[i * kTerms + i];
  }
  return true;
}

// xᵀ m x − 2 vᵀ x: the squared error up to a constant.
double error_of(const Matrix& m, const Vector& v, const Vector& x) {
  double error = 0;
  for (int r = 0; r < kTerms; ++r) {
    double row = 0;
    for (int c = 0; c < kTerms; ++c) row += m[r * kTerms + c] * x[c];
    error += x[r] * (row - 2 * v[r]);
  }
  return error;
}

}  // namespace

double StepTime::predict(const Work& work) const {
  return coefficients_[0] + coefficients_[1] * work.rows + coefficients_[2] * work.row_context;
}

double StepTime::predict_prefill(int64_t begin, int64_t end, int64_t chunk) const {
  if (end <= begin) return 0;
  const double rows = static_cast<double>(end - begin);
  const double steps = std::ceil(rows / static_cast<double>(std::max<int64_t>(chunk, 1)));
  const double row_context = rows * (static_cast<double>(begin) + static_cast<double>(end) + 1) / 2;
  return coefficients_[0] * steps + coefficients_[1] * rows + coefficients_[2] * row_context;
}

void StepTime::observe(const Work& work, double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || work.rows <= 0) return;
  const double expected = predict(work);
  if (num_observed_ >= kTrustedAfter && expected > 0) seconds = std::min(seconds, kLargestSurprise * expected);
  const Vector terms = {1, work.rows, work.row_context};
  for (int r = 0; r < kTerms; ++r) {
    for (int c = 0; c < kTerms; ++c) {
      double& moment = moments_[r * kTerms + c];
      moment = kForgetting * moment + terms[r] * terms[c];
    }
    products_[r] = kForgetting * products_[r] + terms[r] * seconds;
  }
  ++num_observed_;
  solve();
}

// Least squares with coefficients ≥ 0: the best feasible one of the 2³ sets of terms that may differ from zero. The
// terms' sizes are eight orders of magnitude apart, so they are scaled to a unit diagonal first; what the steps seen
// cannot tell apart is held near the last coefficients.
void StepTime::solve() {
  Vector scale;
  for (int i = 0; i < kTerms; ++i) scale[i] = std::sqrt(std::max(moments_[i * kTerms + i], 1e-300));
  Matrix m;
  Vector v;
  for (int r = 0; r < kTerms; ++r) {
    for (int c = 0; c < kTerms; ++c) m[r * kTerms + c] = moments_[r * kTerms + c] / (scale[r] * scale[c]);
    m[r * kTerms + r] += kStayWeight;
    v[r] = products_[r] / scale[r] + kStayWeight * coefficients_[r] * scale[r];
  }
  Vector best = {};
  double best_error = 0;  // of all zeros
  for (unsigned subset = 1; subset < (1U << kTerms); ++subset) {
    Vector x;
    if (!solve_subset(m, v, subset, x)) continue;
    if (std::any_of(x.begin(), x.end(), [](double value) { return value < 0; })) continue;
    const double error = error_of(m, v, x);
    if (error < best_error) {
      best_error = error;
      best = x;
    }
  }
  for (int i = 0; i < kTerms; ++i) coefficients_[i] = best[i] / scale[i];
}

}  // namespace tandem

#include "train/gradient_check.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace tandem::test {
namespace {

constexpr double kStep = 1e-4;

double weighted_sum(const std::function<at::Tensor()>& f, const at::Tensor& weights) {
  const c10::NoGradGuard no_grad;
  return (f() * weights).sum().item<double>();
}

// Two step widths, combined so that the third derivative drops out.
double central_difference(const std::function<at::Tensor()>& f, const at::Tensor& weights, double& element) {
  const double kept = element;
  const auto at_offset = [&](double offset) {
    element = kept + offset;
    return weighted_sum(f, weights);
  };
  const double near = at_offset(kStep) - at_offset(-kStep);
  const double far = at_offset(2 * kStep) - at_offset(-2 * kStep);
  element = kept;
  return (8 * near - far) / (12 * kStep);
}

}  // namespace

at::Tensor random_leaf(at::IntArrayRef shape, uint64_t seed, double spread) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  at::Tensor leaf = at::empty(shape, at::kDouble);
  auto* values = leaf.data_ptr<double>();
  for (int64_t i = 0; i < leaf.numel(); ++i) values[i] = spread * normal(generator);
  return leaf.set_requires_grad(true);
}

void expect_gradients(const std::function<at::Tensor()>& f, const NamedTensors& inputs, int64_t elements,
                      const std::vector<std::string>& may_be_zero) {
  for (const auto& [name, input] : inputs) input.mutable_grad() = at::Tensor();
  const at::Tensor out = f();
  const at::Tensor weights = random_leaf(out.sizes(), 99).detach();
  const at::Tensor sum = (out * weights).sum();
  sum.backward();
  for (const auto& [name, input] : inputs) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(input.is_contiguous() && input.scalar_type() == at::kDouble);
    const bool may_vanish = std::find(may_be_zero.begin(), may_be_zero.end(), name) != may_be_zero.end();
    if (!input.grad().defined()) {
      EXPECT_TRUE(may_vanish) << "no gradient";
      continue;
    }
    const at::Tensor gradient = input.grad().contiguous();
    const double largest = gradient.abs().max().item<double>();
    EXPECT_TRUE(may_vanish || largest > 0) << "the gradient is zero throughout";
    const double tolerance = 1e-8 + 1e-7 * std::max(largest, std::fabs(sum.item<double>()));
    const int64_t stride = std::max<int64_t>(1, input.numel() / elements);
    for (int64_t i = 0; i < input.numel(); i += stride) {
      const double numeric = central_difference(f, weights, input.data_ptr<double>()[i]);
      const double analytic = gradient.data_ptr<double>()[i];
      ASSERT_LE(std::fabs(numeric - analytic), tolerance)
          << "element " << i << ": autograd " << analytic << ", central difference " << numeric;
    }
  }
}

}  // namespace tandem::test

// The CUDA kernels of the trainer, emulated on the CPU, against ATen in double: values and gradients of every operator.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "train/modules/device_check.h"
#include "train/modules/kernel_calls.h"

namespace tandem::train {
namespace {

TEST(TrainKernels, AreEmulatedHere) { EXPECT_TRUE(kernels::take(at::ones({8}))); }

TEST(TrainKernels, EveryOperatorWithinItsBound) {
  int checked = 0;
  double largest_share = 0;
  check_operators(at::kCPU, [&](const CheckResult& result) {
    ++checked;
    largest_share = std::max(largest_share, result.error / result.bound);
    EXPECT_TRUE(result.passed()) << result.name << ": " << result.error << " of " << result.bound << ", "
                                 << result.worst;
  });
  EXPECT_GT(checked, 70);
  std::printf("%d checks, the closest at %.0f %% of its bound\n", checked, 100 * largest_share);
}

}  // namespace
}  // namespace tandem::train

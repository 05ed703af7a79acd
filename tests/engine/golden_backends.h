// tests/engine/golden_backends.h: the parameters of a suite that runs both golden models on every backend of this
// machine.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "base/cat.h"
#include "kernels/kernel_table.h"

namespace tandem::test {

inline auto golden_models_on_every_backend() {
  return ::testing::Combine(::testing::Values("k3-tiny", "kimi-linear-tiny"),
                            ::testing::ValuesIn(available_backends(detect_cpu_features())));
}

// "k3_tiny_avx512"
inline std::string golden_backend_name(const ::testing::TestParamInfo<std::tuple<std::string, KernelBackend>>& test) {
  std::string name = cat(std::get<0>(test.param), "_", kernel_backend_name(std::get<1>(test.param)));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace tandem::test

// tests/cost/cost_support.h: models by their configuration, and the machine of systems.md §8.3.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "cost/speed.h"
#include "support/golden.h"

namespace tandem::test {

inline ModelCost cost_of_config(const std::string& name, DType dtype) {
  auto config = load_model_config_file(data_path("../../configs/" + name));
  EXPECT_TRUE(config.is_ok()) << config.status().message();
  ModelCost cost;
  cost.config = std::move(config).value();
  cost.weights = released_weight_sizes(cost.config);
  cost.cache = make_cache_layout(cost.config, dtype);
  return cost;
}

// 16 GPUs of 4.8 TB/s and 989 TFLOP/s, everything in memory.
inline SpeedModel spec_machine() {
  SpeedModel speed;
  speed.machine = parse_gpu("16xH200").value();
  speed.efficiency = Efficiency{};
  return speed;
}

inline double relative(double value, double expected) { return std::abs(value - expected) / expected; }

}  // namespace tandem::test

// Laws of the time model: which resource limits, what is unknown, and that more of anything never makes it slower.
#include "cost/speed.h"

#include <array>

#include "cost/cost_support.h"
#include "cost/model_plan.h"

namespace tandem {
namespace {

using test::cost_of_config;
using test::relative;
using test::spec_machine;

SpeedModel desktop(const ModelCost& cost, double ram) {
  SpeedModel speed;
  speed.machine.memory_bytes = ram;
  speed.machine.memory_rate = 60e9;
  speed.machine.flops_rate = 1e12;
  speed.machine.disk_rate = 6e9;
  speed.efficiency = cpu_efficiency();
  speed.placement = place_weights(cost.weights, fixed_memory(cost.weights, false, 1e9, 1e9), speed.machine);
  return speed;
}

TEST(Speed, NamesWhatLimits) {
  const ModelCost k3 = cost_of_config("k3.json", DType::kF32);
  EXPECT_EQ(decode_time(k3, desktop(k3, 2e12), 100, 1)->floor_limit, Limit::kMemory);
  EXPECT_EQ(prefill_time(k3, desktop(k3, 2e12), 0, 512, 512)->floor_limit, Limit::kCompute);
  const auto streamed = decode_time(k3, desktop(k3, 256e9), 100, 1);
  EXPECT_EQ(streamed->floor_limit, Limit::kDisk);
  EXPECT_GT(streamed->disk_bytes, 0.8 * 25.8e9);
  SpeedModel gpu = spec_machine();
  gpu.machine.memory_bytes = 200e9;
  gpu.machine.host_bytes = 2e12;
  gpu.placement = place_weights(k3.weights, fixed_memory(k3.weights, false, 1e9, 1e9), gpu.machine);
  EXPECT_EQ(gpu.placement.disk_experts, 0);
  EXPECT_EQ(decode_time(k3, gpu, 100, 1)->floor_limit, Limit::kHostLink);
}

TEST(Speed, WhatIsUnknownIsNotPredicted) {
  const ModelCost k3 = cost_of_config("k3.json", DType::kF32);
  SpeedModel speed = desktop(k3, 256e9);
  speed.machine.disk_rate = std::nullopt;
  EXPECT_FALSE(decode_time(k3, speed, 100, 1).has_value());
  EXPECT_FALSE(memory_to_hide_disk(k3, speed, {}, 100, 1).has_value());
  speed.placement = Placement{};
  EXPECT_TRUE(decode_time(k3, speed, 100, 1).has_value());
  speed.machine.memory_rate = std::nullopt;
  EXPECT_FALSE(decode_time(k3, speed, 100, 1).has_value());
  EXPECT_FALSE(decode_knee(k3, speed.machine, 100).has_value());
}

TEST(Speed, EveryExpertHasOnePlaceAndMoreMemoryIsNeverSlower) {
  for (const char* name : {"k3.json", "k3-mini.json", "k3-stream.json"}) {
    const ModelCost cost = cost_of_config(name, DType::kF32);
    double before = 1e300;
    for (double ram = 1e8; ram < 4e12; ram *= 1.3) {
      const SpeedModel speed = desktop(cost, ram);
      const Placement& place = speed.placement;
      EXPECT_EQ(place.memory_experts + place.host_experts + place.disk_experts, place.experts);
      EXPECT_TRUE(place.trunk_missing == 0 || place.memory_experts == 0);
      const auto time = decode_time(cost, speed, 1000, 4);
      ASSERT_TRUE(time.has_value());
      EXPECT_GE(time->seconds, time->floor_seconds);
      EXPECT_LE(time->seconds, before * (1 + 1e-12)) << name << " at " << ram;
      before = time->seconds;
    }
    EXPECT_EQ(desktop(cost, 4e12).placement.disk_experts, 0);
  }
}

TEST(Speed, TheKneeIsWhereBothTakeTheSameTime) {
  const ModelCost mini = cost_of_config("k3-mini.json", DType::kF32);
  const Machine machine = desktop(mini, 1e12).machine;
  const auto knee = decode_knee(mini, machine, 500);
  ASSERT_TRUE(knee.has_value());
  const StepCost cost = decode_cost(mini, 500, *knee);
  EXPECT_LT(relative(cost.flops() / *machine.flops_rate, cost.bytes() / *machine.memory_rate), 1e-4);
  const auto tokens = prefill_knee(mini, machine);
  ASSERT_TRUE(tokens.has_value());
  const auto limited = [&](int64_t n) {
    const StepCost step = prefill_cost(mini, 0, n, n);
    return step.flops() / *machine.flops_rate >= step.bytes() / *machine.memory_rate;
  };
  EXPECT_TRUE(limited(static_cast<int64_t>(*tokens)));
  EXPECT_FALSE(limited(static_cast<int64_t>(*tokens) - 1));
  // A machine with far more FLOPs a byte: each sequence brings its states, and never enough work for them.
  Machine wide = machine;
  wide.flops_rate = 1e16;
  EXPECT_FALSE(decode_knee(mini, wide, 500).has_value());
}

TEST(Speed, MemoryThatHidesTheDisk) {
  const ModelCost k3 = cost_of_config("k3-stream.json", DType::kF32);
  const FixedMemory fixed = fixed_memory(k3.weights, false, 1e9, 1e9);
  SpeedModel speed = desktop(k3, 1e12);
  speed.machine.disk_rate = 0.5e9;
  const auto memory = memory_to_hide_disk(k3, speed, fixed, 1000, 1);
  ASSERT_TRUE(memory.has_value());
  EXPECT_GT(*memory, fixed.total());
  EXPECT_LT(*memory, fixed.total() + static_cast<double>(k3.weights.routed_bytes()));
  const auto at = [&](double ram) {
    speed.machine.memory_bytes = ram;
    speed.placement = place_weights(k3.weights, fixed, speed.machine);
    return decode_time(k3, speed, 1000, 1)->limit;
  };
  EXPECT_EQ(at(*memory * 0.98), Limit::kDisk);
  EXPECT_EQ(at(*memory * 1.02), Limit::kMemory);
}

TEST(Speed, Quantities) {
  const std::array<std::pair<const char*, double>, 8> good = {{{"64GB", 64e9},
                                                               {"1.5TiB", 1.5 * (1ull << 40)},
                                                               {"4.8TB/s", 4.8e12},
                                                               {"989TFLOPS", 989e12},
                                                               {"300G", 300e9},
                                                               {"1000000", 1e6},
                                                               {"1e9", 1e9},
                                                               {"500kB", 5e5}}};
  for (const auto& [text, value] : good) EXPECT_EQ(parse_quantity(text), std::optional(value)) << text;
  for (const char* text : {"", "0", "-5GB", "GB", "5XB", "5GBB", "nan", "inf", "5 GB", "0x10", "1e999"}) {
    EXPECT_FALSE(parse_quantity(text).has_value()) << text;
  }
}

TEST(Speed, Gpus) {
  for (const GpuFacts& gpu : known_gpus()) EXPECT_TRUE(parse_gpu(gpu.name).is_ok()) << gpu.name;
  EXPECT_EQ(parse_gpu("rtx 4090").value().memory_bytes, 24e9);
  const Machine eight = parse_gpu("8xH200").value();
  EXPECT_EQ(eight.memory_rate, 8 * 4.8e12);
  EXPECT_TRUE(eight.is_gpu);
  const Machine own = parse_gpu("24GB,1TB/s,165TFLOPS").value();
  EXPECT_EQ(own.memory_bytes, 24e9);
  EXPECT_EQ(own.flops_rate, 165e12);
  for (const char* text : {"", "GTX9", "0xH100", "xH100", "24GB", "24GB,1TB/s", "24GB,1TB/s,1T,2", "24GB,,1T"}) {
    const auto refused = parse_gpu(text);
    ASSERT_FALSE(refused.is_ok()) << text;
    EXPECT_NE(refused.status().message().find("RTX4090"), std::string::npos);
  }
}

TEST(Plan, RefusesWhatIsNoNumberOfTokens) {
  const ModelCost cost = cost_of_config("k3-mini.json", DType::kF32);
  PlanOptions options;
  options.sequences = 0;
  EXPECT_FALSE(plan_of(cost, options).is_ok());
  options.sequences = 1;
  options.context = -4;
  const auto refused = plan_of(cost, options);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_NE(refused.status().message().find("context is -4"), std::string::npos);
}

}  // namespace
}  // namespace tandem

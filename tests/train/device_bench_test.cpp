// The benchmark times what a configuration has, at its own shapes; the numbers are for no test.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/modules/device_check.h"
#include "train/small_models.h"

namespace tandem::train {
namespace {

using ::testing::Contains;
using ::testing::IsSupersetOf;
using ::testing::Not;

std::vector<std::string> timed(const ModelConfig& config) {
  std::vector<std::string> names;
  bench_device(at::kCPU, {config, /*tokens=*/24, /*document=*/10}, [&](const BenchResult& result) {
    names.push_back(result.name);
    EXPECT_GT(result.forward_ms, 0) << result.name;
    EXPECT_GT(result.backward_ms, 0) << result.name;
  });
  return names;
}

TEST(DeviceBench, TimesTheModelThatIsGiven) {
  EXPECT_THAT(timed(test::small_k3()),
              IsSupersetOf({"attn_res_mix, 4 sources", "kda_chunked", "causal_attention", "kda_layer", "mla_layer",
                            "moe_layer, MXFP4", "5-layer model with loss", "5-layer model with loss, recomputing"}));
}

TEST(DeviceBench, LeavesOutWhatAModelHasNot) {
  ModelConfig config = test::small_kimi_linear();
  config.num_experts = 0;
  config.num_hidden_layers = 1;
  config.kinds = {LayerKind::kMla};
  config.kda_num_heads = 0;
  const std::vector<std::string> names = timed(config);
  EXPECT_THAT(names, IsSupersetOf({"causal_attention", "mla_layer", "1-layer model with loss"}));
  for (const char* absent : {"kda_chunked", "short_conv", "kda_layer", "moe_layer"}) {
    EXPECT_THAT(names, Not(Contains(absent)));
  }
}

}  // namespace
}  // namespace tandem::train

// tandem inspect's report: the golden checkpoints, the released shapes, and a checkpoint that lacks a tensor.
#include "engine/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/golden.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

json inspected(const std::string& model) {
  const auto report = inspect_model(model);
  EXPECT_TRUE(report.is_ok()) << report.status().message();
  return report.is_ok() ? json::parse(inspect_json(report.value())) : json();
}

TEST(Inspect, ReleasedK3ShapeFromItsConfiguration) {
  const std::string path = test::data_path("../../configs/k3.json");
  const json report = inspected(path);
  EXPECT_EQ(report["family"], "KimiK3ForConditionalGeneration");
  EXPECT_EQ(report["source"], "config");
  EXPECT_EQ(report["num_tensors"], 497220);
  EXPECT_EQ(report["text_parameters"], 2779484478208);
  EXPECT_EQ(report["total_bytes"], 1560860324864);
  EXPECT_EQ(report["vision_parameters"], 447358976);
  EXPECT_EQ(report["layers"].size(), 93u);
  EXPECT_EQ(report["layers"][0]["conv"], json({36864, 3}));
  EXPECT_EQ(report["layers"][0]["recurrent"], json({96, 128, 128}));
  EXPECT_EQ(report["layers"][0]["feed_forward"], "dense");
  EXPECT_EQ(report["layers"][91]["latent"], json::array({576}));
  EXPECT_EQ(report["layers"][92]["attention"], "mla");
  EXPECT_EQ(report["cache"]["kda"]["recurrent_bytes"], 6 << 20) << "96 · 128 · 128 f32";
  EXPECT_EQ(report["cache"]["bytes_per_sequence"], 69 * ((6 << 20) + 36864 * 3 * 4));
  EXPECT_EQ(report["cache"]["bytes_per_token"], 24 * 576 * 4);
  uint64_t by_group = 0;
  for (const auto& [name, bytes] : report["bytes_by_group"].items()) by_group += bytes.get<uint64_t>();
  EXPECT_EQ(by_group, 1560860324864u);
  EXPECT_EQ(report["bytes_by_dtype"]["U8"], report["bytes_by_group"]["routed_expert"]);

  const std::string text = inspect_text(inspect_model(path).value());
  EXPECT_THAT(text, HasSubstr("conv [36864, 3]"));
  EXPECT_THAT(text, HasSubstr("2,779,484,478,208"));
  EXPECT_THAT(text, HasSubstr("93: 69 KDA (K), 24 MLA (M); 1 dense (lower case), 92 MoE"));
}

TEST(Inspect, GoldenCheckpointsAreWhole) {
  for (const std::string model : {"k3-tiny", "kimi-linear-tiny"}) {
    const json report = inspected(test::data_path("golden/" + model));
    EXPECT_EQ(report["source"], "checkpoint");
    EXPECT_TRUE(report["missing"].empty() && report["unknown"].empty() && report["misshapen"].empty()) << model;
    // What the file holds is what the configuration alone predicts, but for tensors stored in another type.
    const json expected = inspected(test::data_path("golden/" + model + "/config.json"));
    for (const char* key : {"num_tensors", "text_parameters", "vision_parameters", "layers", "cache", "shapes"}) {
      EXPECT_EQ(report[key], expected[key]) << model << ' ' << key;
    }
  }
}

TEST(Inspect, MissingAndUnknownTensorsAreListedAndTheReportStands) {
  const fs::path dir = fs::path(::testing::TempDir()) / "tandem_inspect_other_layer_count";
  fs::remove_all(dir);
  fs::copy(test::data_path("golden/kimi-linear-tiny"), dir);
  json config = json::parse(test::read_text((dir / "config.json").string()));
  config["first_k_dense_replace"] = 0;  // layer 0 should have experts; the file has a dense MLP
  std::ofstream(dir / "config.json") << config.dump();
  const auto report = inspect_model(dir.string());
  ASSERT_TRUE(report.is_ok()) << report.status().message();
  EXPECT_FALSE(report.value().is_clean());
  const json document = json::parse(inspect_json(report.value()));
  EXPECT_EQ(document["unknown"].size(), 3u);
  EXPECT_EQ(document["unknown"][0], "model.layers.0.mlp.down_proj.weight");
  EXPECT_EQ(document["unknown_shards"][0], "model-00001-of-00001.safetensors");
  EXPECT_EQ(document["missing"].size(), 2u + 3 + 12 * 3);
  EXPECT_THAT(inspect_text(report.value()), HasSubstr("missing             41\nunknown             3\n"));
  fs::remove_all(dir);
}

TEST(Inspect, TroubleIsAnError) {
  EXPECT_EQ(inspect_model("/nonexistent/model").status().code(), StatusCode::kNotFound);
  const fs::path dir = fs::path(::testing::TempDir()) / "tandem_inspect_no_weights";
  fs::create_directories(dir);
  fs::copy_file(test::data_path("golden/k3-tiny/config.json"), dir / "config.json",
                fs::copy_options::overwrite_existing);
  const auto report = inspect_model(dir.string());
  ASSERT_FALSE(report.is_ok());
  EXPECT_THAT(report.status().message(), HasSubstr("model.safetensors"));
  fs::remove_all(dir);
}

}  // namespace
}  // namespace tandem

// What an exported checkpoint holds, tensor by tensor, read back by code that does not share the writer's faults.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "support/compare.h"
#include "tensor/mxfp4.h"
#include "train/export_support.h"
#include "train/modules/mxfp4_fake_quant.h"
#include "train/tensors.h"
#include "weights/checkpoint_check.h"

namespace tandem::train {
namespace {

using test::export_options;
using test::floats;
using test::Golden;
using test::GoldenTensor;
using test::Json;
using test::random_model;
using test::TempFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> names_in(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(dir)) names.push_back(file.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// Decoded by the table of the format, not by the engine's kernels.
std::vector<float> decode_mxfp4(const GoldenTensor& packed, const GoldenTensor& scale) {
  std::vector<float> out;
  for (size_t i = 0; i < packed.u8.size() * 2; ++i) {
    const int code = packed.u8[i / 2] >> (i % 2 * 4) & 15;
    out.push_back(std::ldexp(kE2M1Values[code], static_cast<int>(scale.u8[i / kMxGroup]) - 127));
  }
  return out;
}

class Exported : public ::testing::TestWithParam<int> {
 protected:
  static Json config() {
    switch (GetParam()) {
      case 0: return test::odd_k3();
      case 1: return test::packed_k3();
      case 2: return test::odd_kimi_linear(true);
      default: return test::odd_kimi_linear(false);
    }
  }
};

// Every tensor: released name, type and shape; MXFP4 ≡ mxfp4_round(master), BF16 ≡ RNE(master), F32 ≡ master; zeros
// behind A_log. The file holds nothing else.
TEST_P(Exported, HoldsTheMastersBitForBit) {
  const TempFolder scratch;
  const TrainModel model = random_model(config(), 3);
  const Result<ExportReport> report = export_model(model, export_options(config(), scratch.path("out")));
  ASSERT_TRUE(report.is_ok()) << report.status().message();
  const Golden file = Golden::load_path(scratch.path("out/model.safetensors"));

  size_t num_tensors = 0, num_packed = 0;
  int64_t num_parameters = 0;
  model.for_each_released([&](const ExpectedTensor& tensor, const at::Tensor& master) {
    SCOPED_TRACE(std::string(tensor.name));
    num_parameters += master.numel();
    if (tensor.released == ReleasedForm::kMxfp4) {
      const GoldenTensor& packed = file[cat(tensor.name, "_packed")];
      const GoldenTensor& scale = file[cat(tensor.name, "_scale")];
      EXPECT_THAT(packed.shape, ElementsAre(tensor.shape[0], tensor.shape[1] / 2));
      EXPECT_THAT(scale.shape, ElementsAre(tensor.shape[0], tensor.shape[1] / kMxGroup));
      EXPECT_TRUE(test::all_equal_bits(decode_mxfp4(packed, scale), floats(mxfp4_round(master))));
      num_tensors += 2;
      ++num_packed;
      return;
    }
    ++num_tensors;
    const GoldenTensor& stored = file[std::string(tensor.name)];
    EXPECT_EQ(stored.shape, std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end()));
    const bool is_f32 = tensor.released == ReleasedForm::kF32;
    EXPECT_EQ(stored.dtype, is_f32 ? "F32" : "BF16");
    std::vector<float> wanted = floats(is_f32 ? master : master.to(at::kBFloat16));
    wanted.resize(static_cast<size_t>(stored.num_elements()), 0.f);
    EXPECT_TRUE(test::all_equal_bits(stored.f32, wanted));
  });
  EXPECT_EQ(file.tensors().size(), num_tensors);
  EXPECT_EQ(report.value().num_tensors, static_cast<int64_t>(num_tensors));
  EXPECT_EQ(report.value().num_parameters, num_parameters);
  const size_t experts[] = {4 * 7 * 2 + 7 * 2, 5 * 7 * 3, 2 * 5 * 3, 0};
  EXPECT_EQ(num_packed, experts[GetParam()]);
  const Checkpoint checkpoint = Checkpoint::open(scratch.path("out")).value();
  EXPECT_TRUE(check_checkpoint(checkpoint, model.config()).is_clean());
  EXPECT_THAT(names_in(scratch.path("out")), ElementsAre("config.json", "model.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Exported, ::testing::Range(0, 4));

TEST(Export, TrunkInF32IsTheMasters) {
  const TempFolder scratch;
  const Json config = test::packed_k3();
  const TrainModel model = random_model(config, 4);
  ExportOptions options = export_options(config, scratch.path("out"));
  options.format.trunk_f32 = true;
  ASSERT_TRUE(export_model(model, options).is_ok());
  const Golden file = Golden::load_path(scratch.path("out/model.safetensors"));
  model.for_each_released([&](const ExpectedTensor& tensor, const at::Tensor& master) {
    if (tensor.released == ReleasedForm::kMxfp4) {
      EXPECT_TRUE(file.has(cat(tensor.name, "_packed")));
      return;
    }
    std::vector<float> wanted = floats(master);
    wanted.resize(file[std::string(tensor.name)].f32.size(), 0.f);
    EXPECT_EQ(file[std::string(tensor.name)].dtype, "F32");
    EXPECT_TRUE(test::all_equal_bits(file[std::string(tensor.name)].f32, wanted));
  });
}

// Loaded back, exported again: the same files. Shards and one file hold the same model.
TEST(Export, ShardsAndASecondExportChangeNothing) {
  const TempFolder scratch;
  const Json config = test::packed_k3();
  const TrainModel model = random_model(config, 5);
  ASSERT_TRUE(export_model(model, export_options(config, scratch.path("one"))).is_ok());
  ExportOptions options = export_options(config, scratch.path("many"));
  options.format.shard_bytes = 60'000;
  const Result<ExportReport> report = export_model(model, options);
  ASSERT_TRUE(report.is_ok()) << report.status().message();
  EXPECT_GT(report.value().num_shards, 3);
  EXPECT_TRUE(std::filesystem::exists(scratch.path("many/model.safetensors.index.json")));

  for (const char* dir : {"one", "many"}) {
    const Checkpoint checkpoint = Checkpoint::open(scratch.path(dir)).value();
    EXPECT_EQ(checkpoint.total_bytes(), report.value().tensor_bytes);
    const TrainModel loaded = std::move(TrainModel::load(checkpoint, model.config())).value();
    const std::string again = scratch.path(cat(dir, "-again"));
    ASSERT_TRUE(export_model(loaded, export_options(config, again)).is_ok());
    EXPECT_EQ(test::read_text(again + "/model.safetensors"), test::read_text(scratch.path("one/model.safetensors")));
  }
}

TEST(Export, OverwritingLeavesNoContradictingFile) {
  const TempFolder scratch;
  const Json config = test::odd_kimi_linear(false);
  const TrainModel model = random_model(config, 6);
  ExportOptions options = export_options(config, scratch.path("out"));
  options.format.shard_bytes = 60'000;
  options.files = {{"tiktoken.model", "x"}};
  ASSERT_TRUE(export_model(model, options).is_ok());
  const auto companions = read_companion_files(scratch.path("out"));
  ASSERT_TRUE(companions.is_ok());
  EXPECT_EQ(companions.value(), options.files);

  options.format.shard_bytes = 5'000'000'000;
  const Result<ExportReport> refused = export_model(model, options);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("expected a new or empty folder"));
  options.format.overwrite = true;
  ASSERT_TRUE(export_model(model, options).is_ok());
  EXPECT_THAT(names_in(scratch.path("out")), ElementsAre("config.json", "model.safetensors", "tiktoken.model"));
}

// A refusal names the tensor, and no file or folder is left.
TEST(Export, RefusesWhatIsNotFinite) {
  const TempFolder scratch;
  const Json config = test::odd_k3();
  const std::pair<const char*, float> faults[] = {
      {"language_model.model.layers.0.self_attn.A_log", std::numeric_limits<float>::quiet_NaN()},
      {"language_model.model.layers.1.block_sparse_moe.experts.*.w1.weight", std::numeric_limits<float>::infinity()},
      {"language_model.lm_head.weight", std::numeric_limits<float>::max()}};  // infinite as BF16
  for (const auto& [name, value] : faults) {
    const TrainModel model = random_model(config, 7);
    const c10::NoGradGuard no_grad;
    model.find(name)->value.view({-1})[2].fill_(value);
    const Result<ExportReport> refused = export_model(model, export_options(config, scratch.path("out")));
    ASSERT_FALSE(refused.is_ok()) << name;
    EXPECT_EQ(refused.status().code(), StatusCode::kNonFinite);
    std::string released = name;
    if (const size_t star = released.find('*'); star != std::string::npos) released[star] = '0';
    EXPECT_THAT(refused.status().message(), HasSubstr(released));
    EXPECT_THAT(refused.status().message(), HasSubstr("element 2"));
    EXPECT_FALSE(std::filesystem::exists(scratch.path("out")));
  }
}

TEST(Export, RefusesAConfigurationOfAnotherModel) {
  const TempFolder scratch;
  const TrainModel model = random_model(test::odd_k3(), 8);
  Json other = test::odd_k3();
  other["text_config"]["v_head_dim"] = 12;
  Result<ExportReport> refused = export_model(model, export_options(other, scratch.path("out")));
  ASSERT_FALSE(refused.is_ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("kv_b_proj"));
  other = test::odd_k3();
  other["tie_word_embeddings"] = other["text_config"]["tie_word_embeddings"] = true;
  refused = export_model(model, export_options(other, scratch.path("out")));
  ASSERT_FALSE(refused.is_ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("lm_head"));
  Json seeing = Json::parse(test::read_text(test::data_path("golden/k3-tiny/config.json")));
  Json blind = seeing;
  blind.erase("vision_config");
  refused = export_model(random_model(blind, 8), export_options(seeing, scratch.path("out")));
  ASSERT_FALSE(refused.is_ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("vision"));
  EXPECT_FALSE(std::filesystem::exists(scratch.path("out")));
}

}  // namespace
}  // namespace tandem::train

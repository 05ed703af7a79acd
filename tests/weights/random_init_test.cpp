// Random checkpoints: complete by the list of expected tensors, the same for any number of threads, healthy numbers,
// a tokenizer for any vocabulary, and nothing left after a refusal.
#include "weights/random_init.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/cat.h"
#include "support/golden.h"
#include "tensor/mxfp4.h"
#include "weights/checkpoint.h"
#include "weights/checkpoint_check.h"
#include "weights/raw_checkpoint.h"
#include "weights/toy_tokenizer.h"

namespace tandem {
namespace {

using nlohmann::json;
using test::TempFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr const char* kK3 = "golden/k3-tiny/config.json";
constexpr const char* kLinear = "golden/kimi-linear-tiny/config.json";

std::vector<std::string> names_in(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& item : std::filesystem::directory_iterator(dir)) names.push_back(item.path().filename().string());
  std::ranges::sort(names);
  return names;
}

std::string config_of(const char* relative, int64_t vocab_size = 0) {
  json config = json::parse(test::read_text(test::data_path(relative)));
  if (vocab_size > 0) (config.contains("text_config") ? config["text_config"] : config)["vocab_size"] = vocab_size;
  return config.dump();
}

Result<InitReport> init(const std::string& config, const std::string& dir, const InitOptions& options = {},
                        int num_threads = 2) {
  ThreadPool pool(num_threads);
  return init_random_checkpoint(config, "config.json", dir, options, pool, [](uint64_t, uint64_t) {});
}

std::vector<float> values_of(const Checkpoint& checkpoint, std::string_view name) {
  const auto found = checkpoint.find(name);
  EXPECT_TRUE(found.has_value()) << name;
  std::vector<float> values;
  const auto bytes = checkpoint.data(*found);
  for (size_t i = 0; i < bytes.size(); i += static_cast<size_t>(dtype_size(found->dtype))) {
    if (found->dtype == DType::kF32) {
      float value = 0.f;
      std::memcpy(&value, bytes.data() + i, 4);
      values.push_back(value);
    } else {
      bf16 value;
      std::memcpy(&value, bytes.data() + i, 2);
      values.push_back(to_f32(value));
    }
  }
  return values;
}

struct Moments {
  double mean = 0;
  double spread = 0;  // standard deviation
};
Moments moments(const std::vector<float>& values) {
  Moments m;
  for (const float v : values) m.mean += v;
  m.mean /= static_cast<double>(values.size());
  for (const float v : values) m.spread += (v - m.mean) * (v - m.mean);
  m.spread = std::sqrt(m.spread / static_cast<double>(values.size()));
  return m;
}

// The sampling error of mean and spread over n values, five sigma.
void expect_moments(const std::vector<float>& values, double mean, double spread, const char* what) {
  const Moments m = moments(values);
  const double error = 5. * spread / std::sqrt(static_cast<double>(values.size())) + spread * 0x1p-9;
  EXPECT_NEAR(m.mean, mean, error) << what;
  EXPECT_NEAR(m.spread, spread, error) << what;
}

class InitFamily : public ::testing::TestWithParam<const char*> {};

TEST_P(InitFamily, HasExactlyTheExpectedTensors) {
  TempFolder dir;
  const std::string out = dir.path("model");
  const auto report = init(config_of(GetParam()), out);
  ASSERT_TRUE(report.is_ok()) << report.status().message();
  EXPECT_THAT(names_in(out), ElementsAre("config.json", "generation_config.json", "model-00001-of-00001.safetensors",
                                         "model.safetensors.index.json", "tiktoken.model", "tokenizer_config.json"));
  const auto opened = Checkpoint::open(out);
  ASSERT_TRUE(opened.is_ok()) << opened.status().message();
  const auto config = load_model_config(out);
  ASSERT_TRUE(config.is_ok()) << config.status().message();
  const CheckpointReport check = check_checkpoint(opened.value(), config.value());
  EXPECT_TRUE(check.is_clean()) << check.to_status(out).message();
  EXPECT_EQ(report.value().num_tensors, opened.value().num_tensors());
  EXPECT_EQ(report.value().tensor_bytes, opened.value().total_bytes());

  // The golden checkpoint of the same configuration has the same names, types and shapes.
  const std::string golden_dir = std::filesystem::path(test::data_path(GetParam())).parent_path().string();
  const auto golden = Checkpoint::open(golden_dir);
  ASSERT_TRUE(golden.is_ok()) << golden.status().message();
  ASSERT_EQ(golden.value().num_tensors(), opened.value().num_tensors());
  for (int64_t i = 0; i < golden.value().num_tensors(); ++i) {
    const TensorEntry expected = golden.value().tensor(i);
    const TensorEntry actual = opened.value().tensor(i);
    ASSERT_EQ(actual.name, expected.name);
    // Kimi-Linear's released files keep these in BF16 (all but A_log and dt_bias); its golden keeps them in F32.
    const bool widened = GetParam() == kLinear &&
                         (expected.name.ends_with("_conv1d.weight") || expected.name.ends_with("o_norm.weight") ||
                          expected.name.ends_with("e_score_correction_bias"));
    EXPECT_EQ(dtype_name(actual.dtype), widened ? "BF16" : dtype_name(expected.dtype)) << expected.name;
    EXPECT_TRUE(std::ranges::equal(actual.shape, expected.shape)) << expected.name;
  }
}

TEST_P(InitFamily, DependsOnTheSeedAndNotOnThreads) {
  TempFolder dir;
  const std::string config = config_of(GetParam());
  ASSERT_TRUE(init(config, dir.path("one"), {.seed = 5}, 1).is_ok());
  ASSERT_TRUE(init(config, dir.path("three"), {.seed = 5}, 3).is_ok());
  ASSERT_TRUE(init(config, dir.path("other"), {.seed = 6}, 1).is_ok());
  for (const std::string& name : names_in(dir.path("one"))) {
    const std::string one = test::read_text(dir.path("one/" + name));
    EXPECT_TRUE(one == test::read_text(dir.path("three/" + name))) << name;
    if (name.ends_with("of-00001.safetensors")) {
      EXPECT_FALSE(one == test::read_text(dir.path("other/" + name))) << name;
    }
  }
}

TEST_P(InitFamily, ShardsHoldTheSameNumbers) {
  TempFolder dir;
  const std::string config = config_of(GetParam());
  ASSERT_TRUE(init(config, dir.path("one")).is_ok());
  const auto report = init(config, dir.path("many"), {.shard_bytes = 200'000});
  ASSERT_TRUE(report.is_ok());
  EXPECT_GT(report.value().num_shards, 3);
  const auto one = Checkpoint::open(dir.path("one"));
  const auto many = Checkpoint::open(dir.path("many"));
  ASSERT_TRUE(one.is_ok() && many.is_ok());
  ASSERT_EQ(one.value().num_tensors(), many.value().num_tensors());
  for (int64_t i = 0; i < one.value().num_tensors(); ++i) {
    const auto a = one.value().data(one.value().tensor(i));
    const auto b = many.value().data(many.value().tensor(i));
    ASSERT_TRUE(std::ranges::equal(a, b)) << one.value().tensor(i).name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, InitFamily, ::testing::Values(kK3, kLinear),
                         [](const auto& family) { return family.param == kK3 ? "K3" : "KimiLinear"; });

TEST(RandomInit, NumbersAreHealthy) {
  TempFolder dir;
  ASSERT_TRUE(init(config_of(kK3), dir.path("m"), {.seed = 1}).is_ok());
  const auto opened = Checkpoint::open(dir.path("m"));
  ASSERT_TRUE(opened.is_ok());
  const Checkpoint& c = opened.value();
  const std::string layer = "language_model.model.layers.1.";
  expect_moments(values_of(c, "language_model.model.embed_tokens.weight"), 0, 1, "embedding");
  expect_moments(values_of(c, "language_model.lm_head.weight"), 0, 2 / std::sqrt(128.), "head: logits of spread 2");
  expect_moments(values_of(c, layer + "self_attn.q_proj.weight"), 0, 1 / std::sqrt(128.), "fan-in 128");
  expect_moments(values_of(c, layer + "self_attn.q_conv1d.weight"), 0, 0.5, "four taps");
  expect_moments(values_of(c, layer + "input_layernorm.weight"), 1, 0.1, "norm");
  expect_moments(values_of(c, layer + "mlp_res_proj.weight"), 0, 1 / std::sqrt(128.), "pseudo-query");

  const std::vector<float> a_log = values_of(c, layer + "self_attn.A_log");
  ASSERT_EQ(a_log.size(), 128u);
  for (size_t h = 0; h < a_log.size(); ++h) {
    if (h < 4) {
      EXPECT_TRUE(a_log[h] >= -1.f && a_log[h] <= 1.5f && a_log[h] != 0.f) << h;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(a_log[h]), 0u) << h;
    }
  }
  // The decays that the biases alone give: from near the bound e^-5 to near 1.
  const std::vector<float> dt_bias = values_of(c, layer + "self_attn.dt_bias");
  double slowest = -10;
  double fastest = 0;
  for (size_t i = 0; i < dt_bias.size(); ++i) {
    const double g = -5. / (1. + std::exp(-std::exp(static_cast<double>(a_log[i / 32])) * dt_bias[i]));
    slowest = std::max(slowest, g);
    fastest = std::min(fastest, g);
  }
  EXPECT_GT(std::exp(slowest), 0.98);
  EXPECT_LT(fastest, -4.);
}

TEST(RandomInit, MxFp4GroupsUseTheirScale) {
  TempFolder dir;
  ASSERT_TRUE(init(config_of(kK3), dir.path("m"), {.seed = 2}).is_ok());
  const auto opened = Checkpoint::open(dir.path("m"));
  ASSERT_TRUE(opened.is_ok());
  const std::string name = "language_model.model.layers.2.block_sparse_moe.experts.3.w1.weight";
  const auto packed = opened.value().data(*opened.value().find(name + "_packed"));
  const auto scale = opened.value().data(*opened.value().find(name + "_scale"));
  ASSERT_EQ(packed.size(), 32u * 64u / 2u);
  ASSERT_EQ(scale.size(), 32u * 64u / 32u);
  const WeightView weight{packed.data(), reinterpret_cast<const uint8_t*>(scale.data()), 32, 64, WeightFormat::kMxfp4};
  double square_sum = 0;
  std::vector<float> row(64);
  for (int64_t r = 0; r < 32; ++r) {
    weight_row_to_f32(weight, r, row);
    for (size_t begin = 0; begin < row.size(); begin += 32) {
      float largest = 0;
      for (size_t i = begin; i < begin + 32; ++i) {
        largest = std::max(largest, std::fabs(row[i]));
        square_sum += static_cast<double>(row[i]) * row[i];
      }
      const size_t group = static_cast<size_t>(r) * 2 + begin / 32;
      EXPECT_THAT(largest / e8m0_to_f32(static_cast<uint8_t>(scale[group])), ::testing::AnyOf(3.f, 4.f, 6.f));
    }
  }
  // Powers of two cannot meet 1/sqrt(64) exactly: a factor of sqrt(2) either way, and sampling.
  const double rms = std::sqrt(square_sum / (32. * 64.));
  EXPECT_GT(rms, 0.125 / 1.5);
  EXPECT_LT(rms, 0.125 * 1.5);
  EXPECT_GT(*std::ranges::max_element(scale), *std::ranges::min_element(scale));  // varied
}

TEST(RandomInit, EveryVocabularySize) {
  struct Case {
    int64_t vocab_size;
    int64_t num_ranks;
    std::optional<int64_t> bos, eos, pad, media;
  };
  const std::vector<Case> cases = {
      {200, 0, {}, {}, {}, {}},
      {256, 256, {}, {}, {}, {}},
      {257, 256, 256, {}, {}, {}},
      {300, 256, 256, 258, 271, 268},  // 44 control ids: packed in table order
      {384, 256, 256, 258, 271, 268},
      {512, 256, 256, 258, 511, 277},  // 256 control ids: K3's offsets
      {70000, 69744, 69744, 69746, 69999, 69765},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.vocab_size);
    TempFolder dir;
    const std::string out = dir.path("m");
    const auto report = init(config_of(kK3, c.vocab_size), out, {.headers_only = c.vocab_size > 1000});
    ASSERT_TRUE(report.is_ok()) << report.status().message();
    EXPECT_EQ(report.value().has_tokenizer, c.num_ranks > 0);
    const json config = json::parse(test::read_text(out + "/config.json"));
    const auto id = [&](const json& object, const char* field) {
      return object.contains(field) ? std::optional<int64_t>(object[field].get<int64_t>()) : std::nullopt;
    };
    EXPECT_EQ(id(config, "bos_token_id"), c.bos);
    EXPECT_EQ(id(config, "eos_token_id"), c.eos);
    EXPECT_EQ(id(config, "pad_token_id"), c.pad);
    EXPECT_EQ(id(config, "media_placeholder_token_id"), c.media);
    EXPECT_EQ(id(config["text_config"], "eos_token_id"), c.eos);
    EXPECT_TRUE(load_model_config(out).is_ok());
    ASSERT_EQ(std::filesystem::exists(out + "/tiktoken.model"), c.num_ranks > 0);
    if (c.num_ranks == 0) continue;
    const std::string ranks = test::read_text(out + "/tiktoken.model");
    EXPECT_EQ(std::ranges::count(ranks, '\n'), c.num_ranks);
    const json generation = json::parse(test::read_text(out + "/generation_config.json"));
    EXPECT_EQ(id(generation, "eos_token_id"), c.eos);
    const json tokenizer = json::parse(test::read_text(out + "/tokenizer_config.json"));
    for (const auto& [key, value] : tokenizer["added_tokens_decoder"].items()) {
      EXPECT_GE(std::stoll(key), c.num_ranks);
      EXPECT_LT(std::stoll(key), c.vocab_size);
      if (value["content"] == "<|end_of_msg|>") {
        EXPECT_EQ(std::stoll(key), c.eos.value_or(-1));
      }
    }
  }
}

TEST(ToyTokenizer, RanksAreBytesThenLexicographicStrings) {
  const auto tokenizer = make_toy_tokenizer(163840);
  ASSERT_TRUE(tokenizer.has_value());
  EXPECT_EQ(tokenizer->num_ranks, 163584);
  const std::string ranks = tokenizer->rank_file();
  const auto line = [&](int64_t rank) {
    const size_t end = ranks.find(cat(' ', rank, '\n'));
    const size_t begin = rank == 0 ? 0 : ranks.rfind('\n', end) + 1;
    return ranks.substr(begin, end - begin);
  };
  EXPECT_EQ(line(0), "AA==");                       // 00
  EXPECT_EQ(line(65), "QQ==");                      // "A"
  EXPECT_EQ(line(255), "/w==");                     // ff
  EXPECT_EQ(line(256), "AAA=");                     // 00 00
  EXPECT_EQ(line(256 + 0x6162), "YWI=");            // "ab"
  EXPECT_EQ(line(256 + 65535), "//8=");             // ff ff
  EXPECT_EQ(line(256 + 65536), "AAAA");             // 00 00 00
  EXPECT_EQ(line(256 + 65536 + 0x010203), "AQID");  // 01 02 03
}

TEST(ToyTokenizer, ControlNamesAreThoseOfTheFixture) {
  const json fixture = json::parse(test::read_text(test::data_path("fixtures/chat/special_tokens.json")));
  const json& table = fixture["kimi_k3"];
  const auto names = k3_control_names();
  ASSERT_EQ(names.size(), table.size());
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(names[i].offset, table[i]["id"].get<int64_t>() - fixture["n_ranks"].get<int64_t>());
    EXPECT_EQ(names[i].text, table[i]["text"].get<std::string>());
    if (table[i]["special_flag"].is_boolean()) {
      EXPECT_EQ(names[i].special, table[i]["special_flag"].get<bool>());
    }
  }
  const auto tokenizer = make_toy_tokenizer(163840);
  for (const auto& named : tokenizer->control) {
    const auto same = std::ranges::find_if(table, [&](const json& row) { return row["id"] == named.id; });
    ASSERT_NE(same, table.end());
    EXPECT_EQ((*same)["text"].get<std::string>(), named.text);
  }
}

TEST(ToyTokenizer, OtherFieldsOfTheConfigurationStay) {
  const std::string text =
      R"({"z":1,"eos_token_id":[1,2],"a":{"b":[1e-05,null]},"text_config":{"pad_token_id":9,"q":"x"}})";
  const auto written = config_with_token_ids(text, 512, make_toy_tokenizer(512));
  ASSERT_TRUE(written.is_ok());
  const json config = json::parse(written.value());
  EXPECT_EQ(config["z"], 1);
  EXPECT_EQ(config["a"], json::parse(R"({"b":[1e-05,null]})"));
  EXPECT_EQ(config["eos_token_id"], 258);
  EXPECT_EQ(config["text_config"], json::parse(R"({"pad_token_id":511,"q":"x"})"));
  EXPECT_EQ(written.value().find("\"z\""), written.value().find('"'));  // the order too
}

TEST(RandomInit, RealK3ShapeFitsOnAnyDisk) {
  TempFolder dir;
  const std::string out = dir.path("k3");
  const auto report = init(test::read_text(test::data_path("../../configs/k3.json")), out, {.headers_only = true});
  ASSERT_TRUE(report.is_ok()) << report.status().message();
  EXPECT_EQ(report.value().num_tensors, 497'220);
  EXPECT_EQ(report.value().tensor_bytes, 1'560'860'324'864u);
  EXPECT_EQ(report.value().num_shards, 96);
  const auto opened = Checkpoint::open(out, Checkpoint::Mode::kHeadersOnly);
  ASSERT_TRUE(opened.is_ok()) << opened.status().message();
  EXPECT_EQ(opened.value().num_tensors(), 497'220);
  EXPECT_EQ(opened.value().total_bytes(), 1'560'860'324'864u);
  const auto config = load_model_config(out);
  ASSERT_TRUE(config.is_ok());
  const CheckpointReport check = check_checkpoint(opened.value(), config.value());
  EXPECT_TRUE(check.is_clean()) << check.to_status(out).message();
  EXPECT_EQ(check.text.parameters, 2'779'484'478'208);
}

TEST(RandomInit, RefusalsNameTheProblemAndLeaveNothing) {
  TempFolder dir;
  json bad = json::parse(config_of(kK3));
  bad["text_config"]["hidden_act"] = "gelu";
  bad["text_config"].erase("kv_lora_rank");
  const auto refused = init(bad.dump(), dir.path("m"));
  ASSERT_FALSE(refused.is_ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("config.json"));
  EXPECT_THAT(refused.status().message(), HasSubstr("hidden_act"));
  EXPECT_THAT(refused.status().message(), HasSubstr("kv_lora_rank"));
  EXPECT_FALSE(init("{", dir.path("m")).is_ok());
  EXPECT_THAT(names_in(dir.path()), IsEmpty());

  std::filesystem::create_directory(dir.path("used"));
  test::write_raw(dir.path("used/notes.txt"), "mine");
  EXPECT_THAT(init(config_of(kK3), dir.path("used")).status().message(), HasSubstr("expected a new or empty folder"));
  EXPECT_THAT(names_in(dir.path("used")), ElementsAre("notes.txt"));
  EXPECT_EQ(init(config_of(kK3), dir.path("used/notes.txt/m")).status().code(), StatusCode::kIo);
}

TEST(RandomInit, OverwritingDropsTheOldCheckpointAndKeepsOtherFiles) {
  TempFolder dir;
  const std::string out = dir.path("m");
  ASSERT_TRUE(init(config_of(kK3), out, {.shard_bytes = 1'000'000}).is_ok());
  test::write_raw(out + "/notes.txt", "mine");
  ASSERT_TRUE(init(config_of(kK3, 200), out, {.overwrite = true}).is_ok());
  EXPECT_THAT(names_in(out), UnorderedElementsAre("config.json", "model-00001-of-00001.safetensors",
                                                  "model.safetensors.index.json", "notes.txt"));
  EXPECT_TRUE(Checkpoint::open(out).is_ok());
}

TEST(RandomInit, SizeLimitMidwayLeavesNothing) {
  TempFolder dir;
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limited{1'200'000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limited), 0);
  for (const bool headers_only : {false, true}) {
    const auto refused = init(config_of(kK3), dir.path("a/m"), {.headers_only = headers_only});
    EXPECT_FALSE(refused.is_ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(names_in(dir.path()), IsEmpty());
}

TEST(RandomInit, FullDiskIsRefusedBeforehand) {
  TempFolder dir;
  if (::mount("tmpfs", dir.path().c_str(), "tmpfs", 0, "size=2m") != 0) {
    GTEST_SKIP() << "needs the right to mount a small tmpfs (run as root): " << std::strerror(errno);
  }
  const auto refused = init(config_of(kK3), dir.path("m"));
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("the checkpoint needs about "));
  EXPECT_THAT(refused.status().message(), HasSubstr(" bytes of disk, "));
  EXPECT_THAT(names_in(dir.path()), IsEmpty());
  EXPECT_EQ(::umount2(dir.path().c_str(), MNT_DETACH), 0);
}

}  // namespace
}  // namespace tandem

// `tandem init` and `tandem bench`: what they write, and what a failure leaves behind.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "app/cli.h"
#include "base/cat.h"
#include "support/golden.h"

namespace tandem::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

bool is_empty_folder(const std::string& path) { return fs::directory_iterator(path) == fs::directory_iterator(); }

std::string small_config() { return golden_model("kimi-linear-tiny") + "/config.json"; }

TEST(InitCommand, WritesAModelThatRuns) {
  const TempFolder dir;
  const CliResult made = run_cli(
      {"init", small_config(), "--output", dir.path("model"), "--seed", "5", "--shard-size", "300KB", "--json"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Json report = Json::parse(made.out);
  EXPECT_EQ(report["seed"], 5);
  EXPECT_EQ(report["tokenizer"], true);
  EXPECT_GT(report["shards"], 1);
  const Json inspected = Json::parse(run_cli({"inspect", dir.path("model"), "--json"}).out);
  EXPECT_EQ(inspected["num_tensors"], report["tensors"]);
  EXPECT_EQ(inspected["total_bytes"], report["bytes"]);
  EXPECT_EQ(inspected["num_shards"], report["shards"]);
  const CliResult ran = run_cli({"run", dir.path("model"), "Hi", "--max-tokens", "3", "--json", "--ignore-eos"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(Json::parse(ran.out)["tokens"].size(), 3u);
}

TEST(InitCommand, SameSeedSameFiles) {
  const TempFolder dir;
  for (const auto& [name, seed] : {std::pair("a", "7"), std::pair("b", "7"), std::pair("c", "8")}) {
    const CliResult made = run_cli({"init", small_config(), "--output", dir.path(name), "--seed", seed, "--threads",
                                    name == std::string("b") ? "1" : "2"});
    ASSERT_EQ(made.exit_code, 0) << made.err;
  }
  const std::string shard = "/model-00001-of-00001.safetensors";
  EXPECT_TRUE(read_text(dir.path("a") + shard) == read_text(dir.path("b") + shard));
  EXPECT_FALSE(read_text(dir.path("a") + shard) == read_text(dir.path("c") + shard));
}

TEST(InitCommand, RefusesAFolderInUse) {
  const TempFolder dir;
  dir.write("notes.txt", "keep me");
  expect_refused(run_cli({"init", small_config(), "--output", dir.path()}), 1,
                 {dir.path(), "empty folder", "notes.txt"});
  EXPECT_EQ(read_text(dir.path("notes.txt")), "keep me");
  EXPECT_FALSE(fs::exists(dir.path("config.json")));
}

TEST(InitCommand, Refusals) {
  const TempFolder dir;
  const std::string output = dir.path("model");
  expect_refused(run_cli({"init", dir.path("none.json"), "--output", output}), 1, {"none.json"});
  expect_refused(run_cli({"init", dir.path(), "--output", output}), 1, {dir.path()});
  expect_refused(run_cli({"init", small_config(), "--output", output, "--shard-size", "5XB"}), 2,
                 {"--shard-size", "5XB"});
  expect_refused(run_cli({"init", small_config(), "--output", output, "--shard-size", "0"}), 2, {"--shard-size"});
  EXPECT_FALSE(fs::exists(output));
}

TEST(InitCommand, TooSmallAVocabularyHasNoTokenizer) {
  Json config = Json::parse(read_text(small_config()));
  config["vocab_size"] = 200;
  for (const char* id : {"bos_token_id", "eos_token_id", "pad_token_id"}) config[id] = 1;
  const TempFolder dir;
  const CliResult made =
      run_cli({"init", dir.write("config.json", config.dump()), "--output", dir.path("model"), "--json"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_EQ(Json::parse(made.out)["tokenizer"], false);
  EXPECT_NE(made.err.find("no tokenizer"), std::string::npos) << made.err;
  EXPECT_FALSE(fs::exists(dir.path("model/tiktoken.model")));
  EXPECT_EQ(run_cli({"run", dir.path("model"), "--tokens", "1,2", "--max-tokens", "2"}).exit_code, 0);
}

TEST(InitCommand, TheRealShapeAsHeaders) {
  const TempFolder dir;
  const CliResult made = run_cli({"init", config_path("k3.json"), "--output", dir.path("k3"), "--headers-only"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const CliResult inspected = run_cli({"inspect", dir.path("k3"), "--json"});
  ASSERT_EQ(inspected.exit_code, 0) << inspected.err;
  const Json document = Json::parse(inspected.out);
  EXPECT_EQ(document["num_tensors"], 497'220);
  EXPECT_EQ(document["text_parameters"], 2'779'484'478'208);
  EXPECT_EQ(document["total_bytes"], 1'560'860'324'864);
  EXPECT_EQ(document["layers"][0]["conv"], Json({36864, 3}));
  for (const char* list : {"missing", "unknown", "unknown_shards", "misshapen"}) {
    EXPECT_EQ(document[list], Json::array()) << list;
  }
}

TEST(InitCommand, AnInterruptLeavesNothing) {
  const TempFolder dir;
  const CliResult result =
      run_cli({"init", config_path("k3-mini.json"), "--output", dir.path("model")}, {.interrupt_after_ms = 300});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(is_empty_folder(dir.path()));
}

TEST(InitCommand, AFullDiskLeavesNothing) {
  const TempFolder dir;
  const CliResult result =
      run_cli({"init", small_config(), "--output", dir.path("model")}, {.file_size_limit = 100'000});
  expect_refused(result, 1, {"model"});
  EXPECT_TRUE(is_empty_folder(dir.path()));
}

std::vector<Json> json_lines(const CliResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<Json> lines;
  std::istringstream text(result.out);
  for (std::string line; std::getline(text, line);) {
    lines.push_back(Json::parse(line, nullptr, /*allow_exceptions=*/false));
    EXPECT_TRUE(lines.back().is_object()) << line;
  }
  return lines;
}

TEST(BenchCommand, SeveralSequencesShareTheirWeights) {
  const std::vector<Json> lines = json_lines(run_cli(
      {"bench", golden_model("k3-tiny"), "-p", "0", "-n", "4", "--sequences", "1,3", "--repeat", "1", "--json"}));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["sequences"], 1);
  EXPECT_EQ(lines[1]["sequences"], 3);
  EXPECT_GT(lines[1]["tok_s"], 0);
  // Three tokens read the trunk once, and no expert twice.
  EXPECT_LT(lines[1]["bytes_per_token"], lines[0]["bytes_per_token"]);
  EXPECT_GT(lines[1]["bytes_per_token"].get<double>() * 3, lines[0]["bytes_per_token"]);
  EXPECT_EQ(lines[1]["flops_per_token"], lines[0]["flops_per_token"]);
}

TEST(BenchCommand, OneLineACase) {
  const std::vector<Json> lines = json_lines(run_cli({"bench", golden_model("k3-tiny"), "-p", "16", "-n", "4",
                                                      "--depth", "0,8", "--repeat", "3", "--breakdown", "--json"}));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["phase"], "prefill");
  EXPECT_EQ(lines[0]["tokens"], 16);
  EXPECT_EQ(lines[1]["phase"], "decode");
  EXPECT_EQ(lines[1]["depth"], 0);
  EXPECT_EQ(lines[2]["depth"], 8);
  EXPECT_EQ(lines[2]["tokens"], 4);
  for (const Json& line : lines) {
    SCOPED_TRACE(line.dump());
    const double tok_s = line.at("tok_s");
    EXPECT_LE(line.at("min"), tok_s);
    EXPECT_GE(line.at("max"), tok_s);
    EXPECT_GT(line.at("min"), 0);
    const double bytes = line.at("bytes_per_token");
    EXPECT_NEAR(line.at("read_gb_s").get<double>(), bytes * tok_s / 1e9, 1e-9 * bytes * tok_s / 1e9);
    const double percent = 100 * line.at("read_gb_s").get<double>() / line.at("ceiling_read_gb_s").get<double>();
    EXPECT_NEAR(line.at("percent_of_read_ceiling").get<double>(), percent, 1e-9 * percent);
    EXPECT_GT(line.at("percent_of_f32_ceiling"), 0);
    double shares = 0;
    for (const char* phase : {"kda", "mla", "attn_res", "moe", "head"}) {
      EXPECT_GT(line.at("breakdown").at(phase), 0) << phase;
    }
    for (const auto& [phase, share] : line["breakdown"].items()) shares += share.get<double>();
    EXPECT_NEAR(shares, 1.0, 1e-9);
  }
  // Four tokens at a mean depth of 10 instead of 2: 8 latents of three MLA layers more.
  EXPECT_EQ(lines[2]["bytes_per_token"].get<double>() - lines[1]["bytes_per_token"].get<double>(), 8 * 3 * 48 * 4);
}

TEST(BenchCommand, CasesCanBeLeftOut) {
  const std::string model = golden_model("k3-tiny");
  const auto decode_only = json_lines(run_cli({"bench", model, "-p", "0", "-n", "2", "--repeat", "1", "--json"}));
  ASSERT_EQ(decode_only.size(), 1u);
  EXPECT_EQ(decode_only[0]["phase"], "decode");
  EXPECT_FALSE(decode_only[0].contains("breakdown"));
  const auto prefill_only = json_lines(run_cli({"bench", model, "-p", "8", "-n", "0", "--repeat", "1", "--json"}));
  ASSERT_EQ(prefill_only.size(), 1u);
  EXPECT_EQ(prefill_only[0]["phase"], "prefill");
}

TEST(BenchCommand, Refusals) {
  const std::string model = golden_model("k3-tiny");
  expect_refused(run_cli({"bench", model, "--repeat", "0"}), 2, {"--repeat"});
  expect_refused(run_cli({"bench", model, "--depth", "-1"}), 2, {"--depth"});
  expect_refused(run_cli({"bench", model, "--sequences", "0"}), 2, {"--sequences"});
  expect_refused(run_cli({"bench", model, "-p", "8", "-n", "4", "--depth", "32", "--context", "16", "--json"}), 1,
                 {"36 tokens", "holds 16"});
}

}  // namespace
}  // namespace tandem::test

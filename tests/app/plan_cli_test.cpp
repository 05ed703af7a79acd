// `tandem plan`: what it says of a model, from a configuration, from headers, and what it refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "app/cli.h"
#include "support/golden.h"

namespace tandem::test {
namespace {

using Json = nlohmann::json;

const std::vector<std::string> kRates = {"--no-measure", "--mem-bw", "23.6GB/s",  "--flops", "271GFLOPS",
                                         "--ram",        "64GB",     "--disk-bw", "6GB/s"};

CliResult plan(const std::string& model, std::vector<std::string> more = {}, bool rates = true) {
  std::vector<std::string> args = {"plan", model, "--threads", "2"};
  if (rates) args.insert(args.end(), kRates.begin(), kRates.end());
  args.insert(args.end(), more.begin(), more.end());
  return run_cli(args);
}

Json document(const CliResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const Json parsed = Json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(parsed.is_object()) << result.out;
  return parsed;
}

TEST(PlanCommand, FitsAScreenAndExplainsTheCache) {
  const CliResult result = plan(config_path("k3.json"), {"--sequences", "4"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LE(std::count(result.out.begin(), result.out.end(), '\n'), 48) << result.out;
  for (const char* words : {"2779.48 B parameters", "24 MLA layers × 576", "69 KDA layers", "padding", "pages of",
                            "predicted", "knee", "prefix hit", "do not fit"}) {
    EXPECT_NE(result.out.find(words), std::string::npos) << words << " in\n" << result.out;
  }
}

TEST(PlanCommand, ConfigAndHeadersAgree) {
  const TempFolder dir;
  const CliResult made = run_cli({"init", config_path("k3-8l.json"), "--output", dir.path("m"), "--headers-only"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  Json bare = document(plan(config_path("k3-8l.json"), {"--json"}));
  Json headers = document(plan(dir.path("m"), {"--json"}));
  EXPECT_EQ(bare["source"], "config");
  EXPECT_EQ(headers["source"], "checkpoint");
  for (const char* part : {"weights", "cache", "memory", "decode", "prefill", "knee", "prefix_hits", "notes"}) {
    EXPECT_EQ(bare[part], headers[part]) << part;
  }
  // A folder with config.json alone.
  std::filesystem::create_directory(dir.path("only"));
  std::filesystem::copy(config_path("k3-8l.json"), dir.path("only/config.json"));
  EXPECT_EQ(document(plan(dir.path("only"), {"--json"}))["weights"], bare["weights"]);
}

TEST(PlanCommand, NamesThePathThatItCounts) {
  const Json fast = document(plan(config_path("k3.json"), {"--json"}));
  const Json reference = document(plan(config_path("k3.json"), {"--json", "--path=reference"}));
  EXPECT_EQ(fast["path"], "fast");
  EXPECT_EQ(reference["path"], "reference");
  const double ratio =
      reference["cache"]["bytes_per_token"].get<double>() / fast["cache"]["bytes_per_token"].get<double>();
  EXPECT_NEAR(ratio, 53.33, 0.01);
  EXPECT_NE(plan(config_path("k3.json"), {"--path=reference"}).out.find("53.3 × the latents"), std::string::npos);
}

TEST(PlanCommand, DecodePointsForEveryBatch) {
  const Json out = document(plan(config_path("k3-mini.json"), {"--json", "--batch", "1,16", "--context", "4096"}));
  ASSERT_EQ(out["decode"].size(), 4u);  // 1024 and 4096 tokens
  for (const Json& point : out["decode"]) {
    EXPECT_GE(point["time"]["floor_tok_s"], point["time"]["tok_s"]) << point.dump();
    EXPECT_GT(point["cost"]["bytes"], 0);
  }
  EXPECT_EQ(out["decode"][1]["batch"], 16);
  EXPECT_GT(out["knee"]["decode_batch"], 1);
}

TEST(PlanCommand, AGpuTakesWhatFitsIt) {
  const Json out = document(run_cli({"plan", config_path("k3.json"), "--gpu", "8xH200", "--ram", "512GB", "--disk-bw",
                                     "12GB/s", "--cache-dtype", "bf16", "--json"}));
  const Json& place = out["memory"]["placement"];
  EXPECT_EQ(place["memory_experts"].get<int64_t>() + place["host_experts"].get<int64_t>() +
                place["disk_experts"].get<int64_t>(),
            92 * 896);
  EXPECT_GT(place["memory_experts"], 0);
  EXPECT_GT(place["host_experts"], 0);
  EXPECT_EQ(out["prefill_chunk"], 8192);
}

TEST(PlanCommand, ComparesAttentions) {
  const std::vector<std::string> gpu = {"--compare", "--gpu", "16xH200", "--cache-dtype", "bf16"};
  const CliResult text = plan(config_path("k3.json"), gpu, /*rates=*/false);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  for (const char* words : {"full MLA", "GQA", "DSA", "8 key/value heads", "less from 5,845 tokens", "TTFT", "TPOT"}) {
    EXPECT_NE(text.out.find(words), std::string::npos) << words << " in\n" << text.out;
  }
  std::vector<std::string> json = gpu;
  json.push_back("--json");
  const Json out = document(plan(config_path("k3.json"), json, /*rates=*/false))["compare"];
  ASSERT_EQ(out["attentions"].size(), 4u);
  for (const Json& attention : out["attentions"]) EXPECT_EQ(attention["points"].size(), 6u);
  EXPECT_EQ(out["crossings"].size(), 12u);
}

TEST(PlanCommand, WithoutRatesThereAreBytesAndNoTimes) {
  const Json out = document(plan(config_path("k3-mini.json"), {"--no-measure", "--json"}, /*rates=*/false));
  EXPECT_GT(out["weights"]["trunk_bytes"], 0);
  EXPECT_TRUE(out["decode"][0]["time"].is_null());
  EXPECT_NE(out["notes"].dump().find("--mem-bw"), std::string::npos);
}

TEST(PlanCommand, WarnsBeyondTheContext) {
  const CliResult result = plan(config_path("k3-mini.json"), {"--context", "100000"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("65536 tokens of context; 100000"), std::string::npos) << result.out;
}

TEST(PlanCommand, Refusals) {
  const TempFolder dir;
  const std::string mini = config_path("k3-mini.json");
  expect_refused(plan(dir.path("none")), 1, {"none"});
  expect_refused(plan(dir.path()), 1, {"config.json"});
  expect_refused(run_cli({"plan", mini, "--ram", "0"}), 2, {"--ram", "0"});
  expect_refused(run_cli({"plan", mini, "--ram=-5GB"}), 2, {"--ram", "-5GB"});
  expect_refused(run_cli({"plan", mini, "--disk-bw", "fast"}), 2, {"--disk-bw", "fast"});
  expect_refused(run_cli({"plan", mini, "--gpu", "GTX9"}), 2, {"--gpu", "GTX9", "H200"});
  for (const char* flag : {"--context", "--sequences", "--prompt", "--batch"}) {
    EXPECT_EQ(run_cli({"plan", mini, flag, "0"}).exit_code, 2) << flag;
  }
  // A checkpoint that lacks a tensor is no basis for a plan.
  dir.write("m/config.json", read_text(mini));
  dir.write("m/model.safetensors", std::string("\x02\0\0\0\0\0\0\0{}", 10));
  expect_refused(plan(dir.path("m")), 1, {"missing"});
}

TEST(PlanCommand, BenchSaysWhatWasPredicted) {
  const CliResult result =
      run_cli({"bench", golden_model("k3-tiny"), "-p", "16", "-n", "4", "--repeat", "1", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json line = Json::parse(result.out.substr(0, result.out.find('\n')), nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(line.is_object()) << result.out;
  const double predicted = line.at("predicted_tok_s");
  EXPECT_GT(predicted, 0);
  EXPECT_NEAR(line.at("measured_over_predicted").get<double>(), line.at("tok_s").get<double>() / predicted, 1e-9);
}

}  // namespace
}  // namespace tandem::test

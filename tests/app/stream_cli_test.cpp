// `--ram`: the tokens of the resident run within a budget that the process keeps, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "app/cli.h"
#include "base/cat.h"

namespace tandem::test {
namespace {

using Json = nlohmann::ordered_json;

// demo.json with 60 MB of experts in 1024 pieces.
const std::string& wide_model() {
  static const TempFolder dir;
  static const std::string model = [] {
    std::ifstream in(config_path("demo.json"));
    Json config = Json::parse(in);
    Json& text = config["text_config"];
    text["num_experts"] = 128;
    text["moe_intermediate_size"] = text["routed_expert_hidden_size"] = 192;
    const std::string path = dir.write("wide.json", config.dump());
    std::string folder = dir.path("wide");
    const CliResult made = run_cli({"init", path, "--output", folder, "--seed", "4"});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    return folder;
  }();
  return model;
}

Json run_json(const std::string& ram) {
  std::vector<std::string> args = {"run",
                                   wide_model(),
                                   "--tokens",
                                   "5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21",
                                   "--temperature",
                                   "0",
                                   "--max-tokens",
                                   "24",
                                   "--ignore-eos",
                                   "--prefill-chunk",
                                   "8",
                                   "--context",
                                   "64",
                                   "--threads",
                                   "2",
                                   "--json",
                                   "--stats"};
  if (!ram.empty()) args.insert(args.end(), {"--ram", ram});
  const CliResult result = run_cli(args);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  Json document = Json::parse(result.out, nullptr, false);
  document["stderr"] = result.err;
  return document;
}

TEST(RamBudget, EveryBudgetGivesTheSameTokensAndIsKept) {
#ifdef TANDEM_SANITIZED
  GTEST_SKIP() << "a sanitizer's own memory is larger than the budgets";
#endif
  const Json resident = run_json("");
  EXPECT_FALSE(resident.contains("experts"));
  for (const int64_t megabytes : {110, 90}) {
    SCOPED_TRACE(megabytes);
    const Json streamed = run_json(cat(megabytes, "MB"));
    EXPECT_EQ(streamed["tokens"], resident["tokens"]);
    EXPECT_EQ(streamed["text"], resident["text"]);
    ASSERT_TRUE(streamed.contains("experts")) << streamed;
    EXPECT_LT(streamed["experts"]["slots"], 1024);
    EXPECT_EQ(streamed["experts"]["experts"], 1024);
    EXPECT_GT(streamed["experts"]["misses"], 0);
    EXPECT_GT(streamed["experts"]["bytes_read"], 0);
    EXPECT_LE(streamed["timings"].value("peak_memory_bytes", INT64_MAX), megabytes * 1'010'000);
    const std::string said = streamed["stderr"];
    EXPECT_NE(said.find(cat("within ", megabytes, ".0 MB: trunk resident")), std::string::npos) << said;
    EXPECT_NE(said.find("experts: "), std::string::npos) << said;
  }
}

TEST(RamBudget, WhatCannotHoldATokenIsRefusedByPart) {
  expect_refused(run_cli({"run", wide_model(), "--tokens", "1", "--ram", "20MB"}), 1,
                 {"--ram is 20.0 MB, and at least ", "for the trunk", "for the 4 experts of one token in one layer",
                  "scratch", "for caches", "for the process"});
  expect_refused(run_cli({"run", wide_model(), "--tokens", "1", "--ram", "lots"}), 1,
                 {"--ram: expected a positive size", "lots"});
}

TEST(RamBudget, ScoreAndBenchKnowIt) {
#ifdef TANDEM_SANITIZED
  GTEST_SKIP() << "a sanitizer's own memory is larger than the budget";
#endif
  const TempFolder folder;
  const std::string input = folder.write("in.json", R"({"prompts":[{"id":"a","tokens":[1,2,3,4,5,6,7,8]}]})");
  const auto perplexity = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {
        "score", wide_model(), "--input", input, "--output", folder.path("out.safetensors"), "--json"};
    args.insert(args.end(), more.begin(), more.end());
    const CliResult result = run_cli(args);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out)["perplexity"];
  };
  EXPECT_EQ(perplexity({"--ram", "100MB"}), perplexity({}));
  const CliResult bench = run_cli({"bench", wide_model(), "-p", "8", "-n", "4", "--repeat", "1", "--context", "64",
                                   "--ram", "110MB", "--prefill-chunk", "8", "--json"});
  ASSERT_EQ(bench.exit_code, 0) << bench.err;
  const Json first = Json::parse(bench.out.substr(0, bench.out.find('\n')));
  ASSERT_TRUE(first.contains("stream")) << first;
  EXPECT_GT(first["stream"]["drive_random_read_gb_s"], 0.0);
  EXPECT_GT(first["stream"]["needed"], 0);
}

// The checks of the self-test by name, with their verdicts.
Json self_test_of(const CliResult& result) {
  const Json document = Json::parse(result.out);
  Json found = Json::object();
  for (const Json& check : document["checks"]) {
    if (check["area"] == "self_test") found[check["name"].get<std::string>()] = check;
  }
  return found;
}

TEST(RamBudget, DoctorTestsAStreamedModel) {
#ifdef TANDEM_SANITIZED
  GTEST_SKIP() << "a sanitizer's own memory is larger than the budgets";
#endif
  const auto doctor = [](const std::string& ram) {
    return run_cli({"doctor", wide_model(), "--skip", "cpu,memory,disk", "--threads", "2", "--ram", ram, "--json"});
  };
  const CliResult roomy = doctor("110MB");
  EXPECT_EQ(roomy.exit_code, 0) << roomy.out;
  Json checks = self_test_of(roomy);
  EXPECT_NE(checks["load"]["message"].get<std::string>().find("routed experts streamed from disk"), std::string::npos);
  for (const char* name : {"load", "finite", "chunks", "batch", "decode", "reference"}) {
    EXPECT_EQ(checks[name]["verdict"], "ok") << checks[name];
  }
  // A budget that does not hold a token.
  const CliResult none = doctor("20MB");
  EXPECT_EQ(none.exit_code, 0) << none.out;
  EXPECT_EQ(self_test_of(none)["load"]["verdict"], "skipped");
  EXPECT_NE(none.out.find("--ram is 20.0 MB, and at least"), std::string::npos) << none.out;
}

TEST(TraceCommand, WritesTheExpertsOfGeneratedTokens) {
  const TempFolder folder;
  const std::string input =
      folder.write("in.json", R"({"prompts":[{"id":"a","tokens":[1,2,3]},{"id":"b","tokens":[4]}]})");
  const CliResult result = run_cli({"trace", wide_model(), "--input", input, "--output", folder.path("t.jsonl"),
                                    "--max-tokens", "5", "--temperature", "0", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Json::parse(result.out)["tokens"], 8);  // the first comes from the prompt's step
  std::ifstream in(folder.path("t.jsonl"));
  int64_t count = 0;
  for (std::string line; std::getline(in, line); ++count) {
    const Json token = Json::parse(line);
    EXPECT_EQ(token["tok"], count);
    ASSERT_EQ(token["layers"].size(), 8u);
    for (const Json& ids : token["layers"]) {
      ASSERT_EQ(ids.size(), 4u);
      EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
      EXPECT_LT(ids.back(), 128);
    }
  }
  EXPECT_EQ(count, 8);
  expect_refused(run_cli({"trace", golden_model("k3-tiny"), "--output", folder.path("u.jsonl")}), 1, {"tokenizer"});
}

TEST(TraceCommand, ReplaysARecordAgainstCaches) {
  const TempFolder folder;
  std::string lines;
  for (int token = 0; token < 6; ++token) {
    lines += cat("{\"tok\": ", token, ", \"layers\": [[0, ", 1 + token % 2, "]]}\n");
  }
  const std::string path = folder.write("t.jsonl", lines);
  const CliResult result = run_cli({"trace", "--replay", path, "--capacity", "25,75", "--experts", "4", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json report = Json::parse(result.out);
  EXPECT_EQ(report["needs"], 12);
  ASSERT_EQ(report["rows"].size(), 2u);
  EXPECT_EQ(report["rows"][0]["capacity"], 1);
  EXPECT_NEAR(report["rows"][0]["belady"].get<double>(), 100.0 * 5 / 12, 1e-9);  // expert 0, always
  EXPECT_EQ(report["rows"][1]["capacity"], 3);
  for (const char* policy : {"lru", "lfru", "reuse", "belady"}) {
    EXPECT_NEAR(report["rows"][1][policy].get<double>(), 100.0 * 9 / 12, 1e-9) << policy;  // three first needs
  }
  const CliResult table = run_cli({"trace", "--replay", path});
  EXPECT_EQ(table.exit_code, 1);  // 10 % of three experts is none
  EXPECT_NE(run_cli({"trace", "--replay", path, "--capacity", "50"}).out.find("Belady"), std::string::npos);
  const std::string broken = folder.write("b.jsonl", lines + "{\"tok\": 6}\n");
  expect_refused(run_cli({"trace", "--replay", broken}), 1, {"b.jsonl:7", "layers"});
  expect_refused(run_cli({"trace", "--replay", folder.path("none.jsonl")}), 1, {"none.jsonl"});
  expect_refused(run_cli({"trace"}), 1, {"--replay"});
}

}  // namespace
}  // namespace tandem::test

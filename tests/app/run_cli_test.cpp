// `tandem run`: greedy tokens against the goldens, its JSON, where its defaults come from, and its refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/cli.h"
#include "base/cat.h"
#include "support/golden.h"

namespace tandem::test {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

Golden expected_of(const std::string& model) { return Golden::load(cat("golden/", model, "/expected.safetensors")); }

Ids head(const Ids& ids, size_t count) { return {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count)}; }

// Runs with --json: stdout must be exactly one line, an object.
Json run_json(std::vector<std::string> args, const CliOptions& options = {}) {
  args.insert(args.begin(), "run");
  args.push_back("--json");
  const CliResult result = run_cli(args, options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << result.out;
  Json document = Json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(document.is_object()) << result.out;
  return document.is_object() ? document : Json::object();
}

Ids tokens_of(const Json& document) { return document.value("tokens", Ids{}); }

TEST(RunCommand, GreedyTokensAreTheGoldens) {
  for (const std::string model : {"k3-tiny", "kimi-linear-tiny"}) {
    const Golden golden = expected_of(model);
    for (const char* id : {"p1", "p37"}) {
      SCOPED_TRACE(cat(model, " ", id));
      const Ids& prompt = golden[cat(id, ".ids")].i32;
      const Json document = run_json({golden_model(model), "--tokens", token_list(prompt), "--temperature", "0",
                                      "--max-tokens", "16", "--ignore-eos"});
      EXPECT_EQ(tokens_of(document), head(golden[cat(id, ".greedy")].i32, 16));
      EXPECT_TRUE(document["text"].is_null());  // there is no tokenizer
      EXPECT_EQ(document["finish_reason"], "length");
      EXPECT_EQ(document["usage"]["prompt_tokens"], prompt.size());
      EXPECT_EQ(document["usage"]["completion_tokens"], 16);
      EXPECT_EQ(document["usage"]["total_tokens"], prompt.size() + 16);
      for (const char* key : {"ttft_s", "prefill_s", "decode_s", "prefill_tok_s", "decode_tok_s"}) {
        EXPECT_GT(document["timings"].value(key, 0.0), 0.0) << key;
      }
      EXPECT_GT(document["timings"].value("peak_memory_bytes", 0), 1'000'000);
    }
  }
}

TEST(RunCommand, GreedyTokensDoNotDependOnWhereTheWeightsLie) {
  const Golden golden = expected_of("k3-tiny");
  for (const char* weights : {"auto", "mapped", "resident"}) {
    const Json document = run_json({golden_model("k3-tiny"), "--tokens", token_list(golden["p37.ids"].i32),
                                    "--temperature", "0", "--max-tokens", "16", "--ignore-eos", "--weights", weights});
    EXPECT_EQ(tokens_of(document), head(golden["p37.greedy"].i32, 16)) << weights;
  }
}

TEST(RunCommand, AnInt8TrunkRunsAndIsRefusedFromTheMapping) {
  const std::vector<std::string> args = {"run", golden_model("k3-tiny"), "--tokens", "1,2,3", "--max-tokens",
                                         "4",   "--ignore-eos",          "--trunk",  "int8"};
  const CliResult resident = run_cli(args);
  EXPECT_EQ(resident.exit_code, 0) << resident.err;
  std::vector<std::string> mapped = args;
  mapped.insert(mapped.end(), {"--weights", "mapped"});
  const CliResult refused = run_cli(mapped);
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_NE(refused.err.find("expected resident weights, not mapped"), std::string::npos) << refused.err;
}

TEST(RunCommand, EveryKernelSetGivesTheSameGreedyTokens) {
  const Golden golden = expected_of("k3-tiny");
  for (const char* kernels : {"ref", "portable", "auto"}) {
    SCOPED_TRACE(kernels);
    const Json document =
        run_json({golden_model("k3-tiny"), "--tokens", token_list(golden["p37.ids"].i32), "--temperature", "0",
                  "--max-tokens", "12", "--ignore-eos", "--kernels", kernels, "--threads", "1"});
    EXPECT_EQ(tokens_of(document), head(golden["p37.greedy"].i32, 12));
  }
}

TEST(RunCommand, WithoutTokenizerStreamsIds) {
  const Golden golden = expected_of("k3-tiny");
  const CliResult result = run_cli({"run", golden_model("k3-tiny"), "--tokens", token_list(golden["p1.ids"].i32),
                                    "--temperature", "0", "--max-tokens", "4", "--ignore-eos"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::string wanted = token_list(head(golden["p1.greedy"].i32, 4));
  std::replace(wanted.begin(), wanted.end(), ',', ' ');
  EXPECT_EQ(result.out, wanted + "\n");
}

TEST(RunCommand, RefusesBadTokenLists) {
  const std::string model = golden_model("k3-tiny");
  const auto refused = [&](const std::string& tokens, std::vector<std::string_view> words) {
    SCOPED_TRACE(tokens);
    expect_refused(run_cli({"run", model, "--tokens", tokens}), 1, words);
  };
  refused("", {"--tokens", "found \"\""});
  refused("1,,2", {"--tokens", "found \"\""});
  refused("1,2,", {"--tokens", "found \"\""});
  refused("x", {"--tokens", "found \"x\""});
  refused("1, 2", {"--tokens", "found \" 2\""});
  refused("99999999999", {"--tokens", "99999999999"});
  refused("1,384", {"token 1", "384", "0..383"});
  refused("1,2,-1", {"-1"});
}

TEST(RunCommand, RefusesWhatDoesNotFit) {
  const std::string model = golden_model("k3-tiny");
  expect_refused(run_cli({"run", model, "--tokens", "1,2,3", "--context", "3"}), 1, {"3 tokens", "holds 3"});
  expect_refused(run_cli({"run", model, "--tokens", "1", "--max-tokens", "0"}), 2, {"--max-tokens"});
  expect_refused(run_cli({"run", model, "--tokens", "1", "--temperature", "3"}), 1, {"temperature", "found 3"});
  expect_refused(run_cli({"run", model, "--tokens", "1", "--top-p", "1.5"}), 1, {"top_p", "1.5"});
  expect_refused(run_cli({"run", model, "--tokens", "1", "--logit-bias", "7"}), 1, {"--logit-bias", "\"7\""});
  expect_refused(run_cli({"run", model, "--tokens", "1", "--logit-bias", "384=1"}), 1, {"logit_bias", "384"});
  expect_refused(run_cli({"run", model, "--tokens", "1", "--kernels", "mmx"}), 2, {"--kernels"});
  expect_refused(run_cli({"run", "/no/such/model", "--tokens", "1"}), 1, {"/no/such/model"});
  expect_refused(run_cli({"run", model, "hello", "--tokens", "1"}), 2, {"PROMPT", "--tokens"});
  expect_refused(run_cli({"run", model, "--chat", "--tokens", "1"}), 2, {"--chat", "--tokens"});
}

TEST(RunCommand, TextWithoutTokenizerNamesTheFile) {
  expect_refused(run_cli({"run", golden_model("k3-tiny"), "hello"}), 1, {"tiktoken.model"});
  expect_refused(run_cli({"run", golden_model("k3-tiny"), "hello", "--chat"}), 1, {"tiktoken.model"});
}

TEST(RunCommand, RefusesAnEmptyPrompt) {
  expect_refused(run_cli({"run", demo_model(), ""}), 1, {"prompt is empty"});
  expect_refused(run_cli({"run", demo_model()}), 1, {"prompt is empty"});  // standard input holds nothing
  expect_refused(run_cli({"run", demo_model(), "", "--chat"}), 1, {"prompt is empty"});
}

TEST(RunCommand, PromptFromStandardInput) {
  const std::vector<std::string> flags = {"--temperature", "0", "--max-tokens", "6"};
  std::vector<std::string> argument = {demo_model(), "Hello there"}, input = {demo_model()};
  argument.insert(argument.end(), flags.begin(), flags.end());
  input.insert(input.end(), flags.begin(), flags.end());
  const Json by_argument = run_json(argument);
  const Json by_input = run_json(input, {.input = "Hello there"});
  EXPECT_EQ(tokens_of(by_argument), tokens_of(by_input));
  EXPECT_EQ(tokens_of(by_argument).size(), 6u);
  EXPECT_TRUE(by_argument["text"].is_string());
}

TEST(RunCommand, OneSeedOneText) {
  const auto tokens = [](const std::string& seed) {
    return tokens_of(run_json({golden_model("k3-tiny"), "--tokens", "5,6,7", "--max-tokens", "24", "--ignore-eos",
                               "--temperature", "1", "--seed", seed}));
  };
  EXPECT_EQ(tokens("11"), tokens("11"));
  EXPECT_NE(tokens("11"), tokens("12"));
}

TEST(RunCommand, LogitBiasDecides) {
  const Json document = run_json({golden_model("k3-tiny"), "--tokens", "5,6", "--max-tokens", "5", "--ignore-eos",
                                  "--logit-bias", "7=1000,9=-50", "--temperature", "0"});
  EXPECT_EQ(tokens_of(document), Ids(5, 7));
}

// Greedy and the stop token both come from generation_config.json; --ignore-eos runs past the latter.
TEST(RunCommand, DefaultsComeFromGenerationConfig) {
  const Golden golden = expected_of("k3-tiny");
  const Ids& greedy = golden["p37.greedy"].i32;
  size_t stop = 3;
  while (std::find(greedy.begin(), greedy.begin() + static_cast<std::ptrdiff_t>(stop), greedy[stop]) !=
         greedy.begin() + static_cast<std::ptrdiff_t>(stop)) {
    ++stop;  // the first place where this token appears
  }
  ASSERT_LT(stop + 4, greedy.size());
  const TempFolder dir;
  link_model(golden_model("k3-tiny"), dir.path("model"), {});
  dir.write("model/generation_config.json", cat(R"({"temperature": 0, "eos_token_id": [)", greedy[stop], "]}"));
  const std::string prompt = token_list(golden["p37.ids"].i32);
  const std::string count = cat(stop + 4);
  const Json stopped = run_json({dir.path("model"), "--tokens", prompt, "--max-tokens", count});
  EXPECT_EQ(tokens_of(stopped), head(greedy, stop));
  EXPECT_EQ(stopped["finish_reason"], "stop");
  const Json ignored = run_json({dir.path("model"), "--tokens", prompt, "--max-tokens", count, "--ignore-eos"});
  EXPECT_EQ(tokens_of(ignored), head(greedy, stop + 4));
  EXPECT_EQ(ignored["finish_reason"], "length");
  dir.write("model/generation_config.json", R"({"temperature": 9})");
  expect_refused(run_cli({"run", dir.path("model"), "--tokens", "1"}), 1, {"generation_config.json", "temperature"});
}

TEST(RunCommand, StatsGoToStandardError) {
  const std::vector<std::string> args = {"run",    golden_model("k3-tiny"), "--tokens", "1,2",    "--temperature",
                                         "0",      "--max-tokens",          "3",        "--json", "--ignore-eos",
                                         "--stats"};
  const CliResult result = run_cli(args);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(Json::parse(result.out, nullptr, false).is_object()) << result.out;
  for (const char* word : {"TTFT", "prefill 2 tokens", "decode 3 tokens", "tok/s", "peak memory"}) {
    EXPECT_NE(result.err.find(word), std::string::npos) << word << " in: " << result.err;
  }
}

TEST(RunCommand, ChatAnswersWithAMessage) {
  const Json document =
      run_json({demo_model(), "Hi", "--chat", "--temperature", "0", "--max-tokens", "6", "--ignore-eos"});
  EXPECT_EQ(document["message"]["role"], "assistant");
  EXPECT_TRUE(document["message"]["reasoning_content"].is_string());  // thinking is on
  EXPECT_EQ(tokens_of(document).size(), 6u);
  const Json raw = run_json({demo_model(), "Hi", "--temperature", "0", "--max-tokens", "1"});
  EXPECT_GT(document["usage"]["prompt_tokens"], raw["usage"]["prompt_tokens"]);  // rendered
}

TEST(RunCommand, ChatWithoutControlNamesNamesThem) {
  Json tokenizer = Json::parse(read_text(demo_model() + "/tokenizer_config.json"));
  Json kept = Json::object();
  for (const auto& [id, entry] : tokenizer["added_tokens_decoder"].items()) {
    const std::string name = entry["content"];
    if (name != "<|open|>" && name != "<|sep|>") kept[id] = entry;
  }
  ASSERT_EQ(kept.size() + 2, tokenizer["added_tokens_decoder"].size());
  tokenizer["added_tokens_decoder"] = kept;
  const TempFolder dir;
  link_model(demo_model(), dir.path("model"), {"tokenizer_config.json"});
  dir.write("model/tokenizer_config.json", tokenizer.dump());
  expect_refused(run_cli({"run", dir.path("model"), "Hi", "--chat"}), 1, {"<|open|>", "<|sep|>"});
}

}  // namespace
}  // namespace tandem::test

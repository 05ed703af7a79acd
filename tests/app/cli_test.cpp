// What every command of `tandem` keeps to, and the two that read no tensor: tokenize and inspect.
#include "app/cli.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "support/golden.h"

namespace tandem::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

const char* const kCommands[] = {"run", "score", "tokenize", "inspect", "init", "bench"};

// A complete, cheap command line of each command; files go to `dir`.
std::vector<std::vector<std::string>> small_runs(const TempFolder& dir) {
  const std::string model = golden_model("k3-tiny");
  const std::string input = dir.write("in.json", R"({"prompts":[{"id":"a","tokens":[1,2]}]})");
  return {{"run", model, "--tokens", "1", "--max-tokens", "2"},
          {"score", model, "--input", input, "--output", dir.path("out.safetensors")},
          {"tokenize", demo_model(), "Hello"},
          {"inspect", model},
          {"init", config_path("demo.json"), "--headers-only", "--output", dir.path("model")},
          {"bench", model, "-p", "4", "-n", "2", "--repeat", "1"}};
}

Json parse_object(const CliResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  Json document = Json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(document.is_object()) << result.out;
  return document.is_object() ? document : Json::object();
}

TEST(CommandLine, HelpHasAnExampleAndTheCommonFlags) {
  for (const char* command : kCommands) {
    SCOPED_TRACE(command);
    const CliResult help = run_cli({command, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    for (const std::string_view word : {"Example", "--json", "--threads", "--kernels", "ref | portable"}) {
      EXPECT_NE(help.out.find(word), std::string::npos) << word;
    }
    EXPECT_NE(help.out.find(cat("tandem ", command, " ")), std::string::npos);
  }
  EXPECT_EQ(run_cli({"--help"}).exit_code, 0);
  EXPECT_EQ(run_cli({"--version"}).exit_code, 0);
}

TEST(CommandLine, UnknownWordsAreUsageErrors) {
  expect_refused(run_cli({"rum"}), 2, {"\"rum\"", "run, serve, score, tokenize, inspect, init, bench"});
  EXPECT_EQ(run_cli({}).exit_code, 2);
  const TempFolder dir;
  for (std::vector<std::string> args : small_runs(dir)) {
    SCOPED_TRACE(args.front());
    args.emplace_back("--no-such-flag");
    expect_refused(run_cli(args), 2, {"--no-such-flag"});
    EXPECT_EQ(run_cli({args.front()}).exit_code, 2);  // MODEL or CONFIG is required
  }
  EXPECT_FALSE(fs::exists(dir.path("out.safetensors")));
  EXPECT_FALSE(fs::exists(dir.path("model")));
}

TEST(CommandLine, ResultsThatCannotBePrintedAreFailures) {
  for (const bool json : {false, true}) {
    const TempFolder dir;
    for (std::vector<std::string> args : small_runs(dir)) {
      SCOPED_TRACE(cat(args.front(), json ? " --json" : ""));
      if (json) args.emplace_back("--json");
      const CliResult result = run_cli(args, {.stdout_path = "/dev/full"});
      EXPECT_EQ(result.exit_code, 1) << result.err;
      EXPECT_NE(result.err.find("standard output"), std::string::npos) << result.err;
    }
  }
}

TEST(CommandLine, JsonIsAllThatJsonPrints) {
  const TempFolder dir;
  for (std::vector<std::string> args : small_runs(dir)) {
    SCOPED_TRACE(args.front());
    args.emplace_back("--json");
    const CliResult result = run_cli(args);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    if (args.front() == "bench") continue;  // one document a line: InitAndBench looks at them
    EXPECT_TRUE(Json::parse(result.out, nullptr, false).is_object()) << result.out;
  }
}

TEST(TokenizeCommand, TextToIdsAndBack) {
  const std::string text = "Grüße, 世界 🙂 <|open|>";
  const Json document = parse_object(run_cli({"tokenize", demo_model(), text, "--json"}));
  EXPECT_EQ(document["text"], text);
  const Ids ids = document["tokens"];
  EXPECT_EQ(document["pieces"].size(), ids.size());
  std::string bytes;  // a piece is text, or the list of its bytes
  for (const Json& piece : document["pieces"]) {
    if (piece.is_string()) {
      bytes += piece.get<std::string>();
    } else {
      for (const int byte : piece) bytes.push_back(static_cast<char>(byte));
    }
  }
  EXPECT_EQ(bytes, text);
  const CliResult decoded = run_cli({"tokenize", demo_model(), "--decode", token_list(ids)});
  EXPECT_EQ(decoded.exit_code, 0);
  EXPECT_EQ(decoded.out, text + "\n");
  EXPECT_EQ(parse_object(run_cli({"tokenize", demo_model(), "--json"}, {.input = text}))["tokens"], document["tokens"]);
}

TEST(TokenizeCommand, ControlNamesOnlyWhenAskedFor) {
  const Json plain = parse_object(run_cli({"tokenize", demo_model(), "a<|open|>b", "--json"}));
  const Json control = parse_object(run_cli({"tokenize", demo_model(), "a<|open|>b", "--control", "--json"}));
  EXPECT_EQ(control["pieces"], Json({"a", "<|open|>", "b"}));
  for (const Json& piece : plain["pieces"]) EXPECT_NE(piece, "<|open|>");
  const CliResult table = run_cli({"tokenize", demo_model(), "a<|open|>b", "--control"});
  EXPECT_NE(table.out.find("\"<|open|>\"  control\n"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("3 tokens\n"), std::string::npos) << table.out;
}

TEST(TokenizeCommand, BareChatIsTheLowLevelEncoder) {
  const Json fixture = Json::parse(read_text(data_path("fixtures/chat/k3_render_golden.json")));
  const TempFolder dir;
  int compared = 0;
  for (const Json& test_case : fixture["cases"]) {
    if (++compared > 8) break;
    SCOPED_TRACE(test_case["name"].get<std::string>());
    const std::string file = dir.write("request.json", test_case["input"].dump());
    const Json bare = parse_object(run_cli({"tokenize", demo_model(), "--chat", file, "--bare", "--json"}));
    EXPECT_EQ(bare["text"], test_case["text"]);
  }
  EXPECT_GT(compared, 8);
}

// The API's defaults: thinking on at effort max. A body that states both is rendered the same.
TEST(TokenizeCommand, ChatAddsTheDefaultsOfTheApi) {
  const TempFolder dir;
  const std::string body = R"({"model":"m","messages":[{"role":"user","content":"Hi"}]})";
  const std::string file = dir.write("request.json", body);
  const Json chat = parse_object(run_cli({"tokenize", demo_model(), "--chat", file, "--json"}));
  const Json bare = parse_object(run_cli({"tokenize", demo_model(), "--chat", file, "--bare", "--json"}));
  const Json piped = parse_object(run_cli({"tokenize", demo_model(), "--chat", "-", "--json"}, {.input = body}));
  EXPECT_EQ(chat, piped);
  const std::string text = chat["text"], bare_text = bare["text"];
  ASSERT_GT(text.size(), bare_text.size());
  EXPECT_NE(text.find("max"), std::string::npos) << text;
  EXPECT_EQ(bare_text.find("max"), std::string::npos) << bare_text;
  EXPECT_TRUE(text.ends_with(bare_text)) << text;
}

TEST(TokenizeCommand, Refusals) {
  const TempFolder dir;
  const std::string model = demo_model();
  expect_refused(run_cli({"tokenize", model, "--chat", dir.path()}), 1, {dir.path()});
  expect_refused(run_cli({"tokenize", model, "--chat", dir.path("none.json")}), 1, {"none.json"});
  expect_refused(run_cli({"tokenize", model, "--chat", dir.write("bad.json", "[")}), 1, {"JSON"});
  expect_refused(run_cli({"tokenize", model, "--decode", "1,x"}), 1, {"--decode", "\"x\""});
  expect_refused(run_cli({"tokenize", model, "--decode", "1,,2"}), 1, {"--decode", "\"\""});
  expect_refused(run_cli({"tokenize", model, "--decode", "32768"}), 1, {"0 to 32767", "32768"});
  expect_refused(run_cli({"tokenize", model, "Hi", "--bare"}), 2, {"--bare", "--chat"});
  expect_refused(run_cli({"tokenize", model, "Hi", "--decode", "1"}), 2, {"--decode"});
  expect_refused(run_cli({"tokenize", golden_model("k3-tiny"), "Hi"}), 1, {"tiktoken.model"});
  expect_refused(run_cli({"tokenize", "/no/such/model", "Hi"}), 1, {"/no/such/model"});
}

TEST(InspectCommand, StatesShapesLayersAndBytes) {
  const Json document = parse_object(run_cli({"inspect", golden_model("k3-tiny"), "--json"}));
  EXPECT_EQ(document["family"], "KimiK3ForConditionalGeneration");
  EXPECT_EQ(document["shapes"]["vocab_size"], 384);
  ASSERT_EQ(document["layers"].size(), 9u);
  EXPECT_EQ(document["layers"][0]["attention"], "kda");
  EXPECT_EQ(document["layers"][0]["conv"], Json({384, 3}));
  EXPECT_EQ(document["layers"][3]["attention"], "mla");
  EXPECT_EQ(document["layers"][3]["latent"], Json({48}));
  EXPECT_EQ(document["num_shards"], 2);
  const Json index = Json::parse(read_text(golden_model("k3-tiny") + "/model.safetensors.index.json"));
  EXPECT_EQ(document["num_tensors"], index["weight_map"].size());
  EXPECT_EQ(document["total_bytes"], index["metadata"]["total_size"]);
  for (const char* split : {"bytes_by_group", "bytes_by_dtype"}) {
    int64_t sum = 0;
    for (const auto& [kind, bytes] : document[split].items()) sum += bytes.get<int64_t>();
    EXPECT_EQ(document["total_bytes"], sum) << split;
  }
  for (const char* list : {"missing", "unknown", "unknown_shards", "misshapen"}) {
    EXPECT_EQ(document[list], Json::array()) << list;
  }
}

TEST(InspectCommand, NamesAMissingShard) {
  const TempFolder dir;
  link_model(golden_model("k3-tiny"), dir.path("model"), {"model-00002-of-00002.safetensors"});
  const CliResult result = run_cli({"inspect", dir.path("model")});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("model-00002-of-00002.safetensors"), std::string::npos) << result.err;
  expect_refused(run_cli({"run", dir.path("model"), "--tokens", "1"}), 1, {"model-00002-of-00002.safetensors"});
}

TEST(InspectCommand, NamesTheWrongFamily) {
  const TempFolder dir;
  const std::string config = dir.write("config.json", R"({"architectures":["LlamaForCausalLM"],"hidden_size":8})");
  expect_refused(run_cli({"inspect", config}), 1, {"LlamaForCausalLM", "KimiK3ForConditionalGeneration"});
}

}  // namespace
}  // namespace tandem::test

// `tandem-train eval` and `tandem-train plot` as their users run them; what every command of it keeps to.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "app/cli.h"
#include "base/cat.h"
#include "support/golden.h"

namespace tandem::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const char* const kCommands[] = {"eval", "plot"};

class TrainerCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_trainer()) GTEST_SKIP() << "tandem-train was not built (no LibTorch)";
  }
};

// A random model with a toy tokenizer, small enough to write replies with; made once a process.
const std::string& small_model() {
  static const TempDir dir;
  static const std::string model = [] {
    Json config = Json::parse(read_text(config_path("demo.json")));
    Json& text = config["text_config"];
    text["vocab_size"] = 1024;
    text["hidden_size"] = 64;
    text["num_hidden_layers"] = 3;
    text["linear_attn_config"]["kda_layers"] = {1};
    text["linear_attn_config"]["full_attn_layers"] = {2, 3};
    for (Json* object : {&config, &text}) {
      for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) object->erase(key);
    }
    std::string folder = dir.path("model");
    const CliResult made = run_cli({"init", dir.write("config.json", config.dump()), "--output", folder});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    return folder;
  }();
  return model;
}

TEST_F(TrainerCommand, HelpShowsAnExample) {
  const CliResult all = run_trainer({"--help"});
  EXPECT_EQ(all.exit_code, 0) << all.err;
  for (const std::string command : kCommands) {
    EXPECT_NE(all.out.find(command), std::string::npos) << command;
    const CliResult help = run_trainer({command, "--help"});
    EXPECT_EQ(help.exit_code, 0) << help.err;
    EXPECT_NE(help.out.find(cat("tandem-train ", command, " ")), std::string::npos) << help.out;
  }
}

TEST_F(TrainerCommand, WrongUsageIsExitCode2) {
  expect_refused(run_trainer({"evaluate"}), 2, {"evaluate", "eval"});
  expect_refused(run_trainer({}), 2, {"subcommand"});
  expect_refused(run_trainer({"eval"}), 2, {"MODEL"});
  expect_refused(run_trainer({"eval", "x", "--cases", "0"}), 2, {"--cases"});
  expect_refused(run_trainer({"plot"}), 2, {"RUN"});
}

TEST_F(TrainerCommand, EvalRefusesWhatIsNotThere) {
  const TempDir dir;
  const std::string recipe = dir.write("eval.json", R"({"families": {"copy": 1}})");
  expect_refused(run_trainer({"eval", "/no/such/model", "--recipe", recipe}), 1, {"/no/such/model"});
  expect_refused(run_trainer({"eval", small_model(), "--recipe", dir.path("none.json")}), 1, {"none.json"});
  expect_refused(run_trainer({"eval", small_model(), "--recipe", dir.write("bad.json", R"({"familys": {}})")}), 1,
                 {"bad.json", "familys", "families"});
  expect_refused(run_trainer({"eval", small_model(), "--recipe", recipe, "--only", "jokes"}), 1, {"jokes", "copy"});
  expect_refused(run_trainer({"eval", golden_model("k3-tiny"), "--recipe", recipe}), 1, {"tiktoken.model"});
  expect_refused(run_trainer({"eval", small_model(), "--recipe", recipe, "--output", dir.path("no/out.json")}), 1,
                 {"no/out.json"});
}

// A random model knows nothing, and that is a result. The table, --json and --output say the same.
TEST_F(TrainerCommand, EvalOfARandomModel) {
  const TempDir dir;
  dir.write("text.txt", std::string(3, ' ') + "It was a bright cold day in spring, and the old clock struck nine.\n");
  const std::string recipe = dir.write("eval.json", R"({"prose": {"files": ["*.txt"]}, "law_tokens": 30,
      "recall": {"64": 2}, "families": {"arithmetic": 2, "tool_call": 2}})");
  const CliResult table = run_trainer({"eval", small_model(), "--recipe", recipe, "--output", dir.path("out.json"),
                                       "--threads", "1", "--show-failures", "1", "--cases", "1"});
  ASSERT_EQ(table.exit_code, 0) << table.err;
  for (const char* word :
       {"bits/byte", "xz -9e", "zstd -19 --long", "prefill ≡ decode", "recall@64", "exact call", "got"}) {
    EXPECT_NE(table.out.find(word), std::string::npos) << word << " in " << table.out;
  }
  EXPECT_NE(table.err.find("recall@64: 1 done"), std::string::npos) << table.err;
  const Json written = Json::parse(read_text(dir.path("out.json")));
  EXPECT_EQ(written["sections"].size(), 3u);
  EXPECT_EQ(written["failures"].size(), 3u);

  const CliResult printed =
      run_trainer({"eval", small_model(), "--recipe", recipe, "--json", "--only", "prose,arithmetic"});
  ASSERT_EQ(printed.exit_code, 0) << printed.err;
  EXPECT_EQ(std::count(printed.out.begin(), printed.out.end(), '\n'), 1);
  const Json document = Json::parse(printed.out);
  EXPECT_EQ(document["prose"]["bits_per_byte"], written["prose"]["bits_per_byte"]);  // on any number of threads
  ASSERT_EQ(document["sections"].size(), 1u);
  EXPECT_EQ(document["sections"][0]["cases"], 2);
  EXPECT_EQ(document["sections"][0]["shares"][0]["share"], 0.0);
}

TEST_F(TrainerCommand, PlotDrawsTheLog) {
  const TempDir dir;
  fs::create_directories(dir.path("run"));
  std::string log;
  for (int i = 1; i <= 40; ++i) {
    log += cat("{\"step\":", i, ",\"loss\":", 6.0 / i, ",\"learning_rate\":", 0.001 * i, ",\"grad_norm\":2}\n");
  }
  dir.write("run/log.jsonl", log + "{\"step\":40,\"validation_loss\":1.5,\"data\":\"held out\"}\n{\"step\":4");
  const CliResult drawn = run_trainer({"plot", dir.path("run")});
  if (drawn.err.find("no such program") != std::string::npos) GTEST_SKIP() << drawn.err;
  ASSERT_EQ(drawn.exit_code, 0) << drawn.err;
  EXPECT_EQ(drawn.out, dir.path("run/curves.png\n"));
  EXPECT_EQ(read_text(dir.path("run/curves.png")).substr(0, 4), "\x89PNG");
  ASSERT_EQ(run_trainer({"plot", dir.path("run/"), "--output", dir.path("a 'b'.png")}).exit_code, 0);
  EXPECT_TRUE(fs::exists(dir.path("a 'b'.png")));
}

TEST_F(TrainerCommand, PlotRefusals) {
  const TempDir dir;
  expect_refused(run_trainer({"plot", dir.path("none")}), 1, {"none/log.jsonl"});
  dir.write("log.jsonl", "");
  expect_refused(run_trainer({"plot", dir.path()}), 1, {"log.jsonl", "no step"});
  dir.write("log.jsonl", "{\"step\":1,\"loss\":2}\nnot JSON\n{\"step\":2,\"loss\":2}\n");
  expect_refused(run_trainer({"plot", dir.path()}), 1, {"log.jsonl line 2"});
}

}  // namespace
}  // namespace tandem::test

// `tandem-train export`, `eval` and `plot` as their users run them, from a run's first step to its model's reply; what
// every command of it keeps to.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "app/cli.h"
#include "base/cat.h"
#include "corpus/token_shard_writer.h"
#include "support/golden.h"

namespace tandem::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const char* const kCommands[] = {"eval", "plot", "export"};

class TrainerCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_trainer()) GTEST_SKIP() << "tandem-train was not built (no LibTorch)";
  }
};

// A random model with a toy tokenizer, small enough to write replies with; made once a process.
const std::string& small_model() {
  static const TempFolder dir;
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
  expect_refused(run_trainer({"eval", "x", "--cases", "0"}), 2, {"--cases"});
}

TEST_F(TrainerCommand, EvalRefusesWhatIsNotThere) {
  const TempFolder dir;
  const std::string recipe = dir.write("eval.json", R"({"families": {"copy": 1}})");
  expect_refused(run_trainer({"eval", "/no/such/model", "--recipe", recipe}), 1, {"/no/such/model"});
  expect_refused(run_trainer({"eval", small_model(), "--recipe", dir.write("bad.json", R"({"familys": {}})")}), 1,
                 {"bad.json", "familys", "families"});
  expect_refused(run_trainer({"eval", small_model(), "--recipe", recipe, "--only", "jokes"}), 1, {"jokes", "copy"});
  expect_refused(run_trainer({"eval", golden_model("k3-tiny"), "--recipe", recipe}), 1, {"tiktoken.model"});
  expect_refused(run_trainer({"eval", small_model(), "--recipe", recipe, "--output", dir.path("no/out.json")}), 1,
                 {"no/out.json"});
}

// A random model knows nothing, and that is a result. The table, --json and --output say the same.
TEST_F(TrainerCommand, EvalOfARandomModel) {
  const TempFolder dir;
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
  const TempFolder dir;
  fs::create_directories(dir.path("run"));
  std::string log;
  for (int i = 1; i <= 40; ++i) {
    log += cat("{\"step\":", i, ",\"loss\":", 6.0 / i, ",\"learning_rate\":", 0.001 * i, ",\"grad_norm\":2}\n");
  }
  dir.write("run/log.jsonl", log + "{\"step\":40,\"validation_loss\":1.5,\"data\":\"held out\"}\n{\"step\":4");
  const CliResult drawn = run_trainer({"plot", dir.path("run"), "--output", dir.path("a 'b'.png")});
  if (drawn.err.find("no such program") != std::string::npos) GTEST_SKIP() << drawn.err;
  ASSERT_EQ(drawn.exit_code, 0) << drawn.err;
  EXPECT_EQ(drawn.out, dir.path("a 'b'.png\n"));
  EXPECT_EQ(read_text(dir.path("a 'b'.png")).substr(0, 4), "\x89PNG");
}

TEST_F(TrainerCommand, PlotRefusals) {
  const TempFolder dir;
  expect_refused(run_trainer({"plot", dir.path("none")}), 1, {"none/log.jsonl"});
  dir.write("log.jsonl", "{\"step\":1,\"loss\":2}\nnot JSON\n{\"step\":2,\"loss\":2}\n");
  expect_refused(run_trainer({"plot", dir.path()}), 1, {"log.jsonl line 2"});
}

// A run of three steps on tokens that count up, in dir/run.
CliResult pretrain(const TempFolder& dir) {
  TokenShardWriter writer = TokenShardWriter::create(dir.path("a.bin"), 1024, LossMask::kNone).value();
  for (int32_t d = 0; d < 30; ++d) {
    std::vector<TokenId> tokens;
    for (int32_t i = 0; i < 40; ++i) tokens.emplace_back((d * 31 + i) % 700);
    EXPECT_TRUE(writer.add_document(tokens).is_ok());
  }
  EXPECT_TRUE(writer.finish().is_ok());
  const Json recipe = {{"run", "run"},
                       {"model", small_model() + "/config.json"},
                       {"tokenizer", small_model()},
                       {"data", {{"text", {"a.bin"}}}},
                       {"curriculum", {{{"data", "text"}, {"length", 64}, {"tokens", 384}, {"pack", "documents"}}}},
                       {"validation", {{"data", "text"}, {"length", 64}, {"sequences", 2}, {"every_steps", 3}}},
                       {"batch_tokens", 128},
                       {"micro_batch_tokens", 128},
                       {"mxfp4_experts", true},
                       {"optimizer", {{"learning_rate", 0.01}}},
                       {"checkpoint", {{"every_steps", 2}, {"keep", 2}}},
                       {"log_every_steps", 1}};
  return run_trainer({"pretrain", dir.write("recipe.json", recipe.dump())});
}

// Train, export, look at it, talk to it, measure it, draw it: what a user of the README does, in small.
TEST_F(TrainerCommand, FromATrainingRunToAReply) {
  const TempFolder dir;
  const CliResult trained = pretrain(dir);
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const CliResult exported = run_trainer({"export", dir.path("run"), "--output", dir.path("model"), "--json"});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  EXPECT_EQ(exported.err, "");  // trained with the MXFP4 experts that config.json declares
  const Json report = Json::parse(exported.out);
  EXPECT_EQ(report["shards"], 1);

  const CliResult inspected = run_cli({"inspect", dir.path("model"), "--json"});
  ASSERT_EQ(inspected.exit_code, 0) << inspected.err;
  const CliResult reply =
      run_cli({"run", dir.path("model"), "Hello", "--chat", "--max-tokens", "5", "--temperature", "0"});
  EXPECT_EQ(reply.exit_code, 0) << reply.err;
  const std::string recipe = dir.write("eval.json", R"({"families": {"greeting": 2}, "law_tokens": 50})");
  const CliResult measured = run_trainer({"eval", dir.path("model"), "--recipe", recipe, "--json"});
  ASSERT_EQ(measured.exit_code, 0) << measured.err;
  EXPECT_EQ(Json::parse(measured.out)["prefill_is_decode"]["positions"], 50);
  const CliResult drawn = run_trainer({"plot", dir.path("run")});
  const bool has_gnuplot = drawn.err.find("no such program") == std::string::npos;
  EXPECT_EQ(drawn.exit_code, has_gnuplot ? 0 : 1) << drawn.err;
  EXPECT_EQ(fs::exists(dir.path("run/curves.png")), has_gnuplot);

  // Another checkpoint of the run is another model; a folder in use and a step that is not there are refused.
  ASSERT_EQ(run_trainer({"export", dir.path("run"), "--step", "2", "--output", dir.path("early")}).exit_code, 0);
  EXPECT_NE(read_text(dir.path("early/model.safetensors")), read_text(dir.path("model/model.safetensors")));
  expect_refused(run_trainer({"export", dir.path("run"), "--output", dir.path("model")}), 1, {"new or empty folder"});
  expect_refused(run_trainer({"export", dir.path("run"), "--step", "7", "--output", dir.path("none")}), 1, {"7"});
  // A full disk ends it; nothing stays behind.
  expect_refused(run_trainer({"export", dir.path("run"), "--output", dir.path("none")}, {.file_size_limit = 100'000}),
                 1, {"none"});
  EXPECT_FALSE(fs::exists(dir.path("none")));
  ASSERT_EQ(run_trainer({"export", dir.path("run"), "--trunk", "f32", "--overwrite", "--output", dir.path("model")})
                .exit_code,
            0);
  EXPECT_GT(read_text(dir.path("model/model.safetensors")).size(),
            read_text(dir.path("early/model.safetensors")).size() * 5 / 4);
}

}  // namespace
}  // namespace tandem::test

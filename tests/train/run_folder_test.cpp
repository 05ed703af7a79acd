// The folder of a run: whose it is, what a killed process left in it, what a start that fails leaves alone; the
// tokenizer that goes with it.
#include "train/run/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "train/run/run_lock.h"
#include "train/run/tokenizer_files.h"
#include "train/run_support.h"

namespace tandem::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::RunFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TrainOptions options(ExistingRun existing, std::optional<int64_t> max_steps = std::nullopt) {
  TrainOptions options;
  options.device = "cpu";
  options.existing = existing;
  options.max_steps = max_steps;
  return options;
}

TEST(RunFolder, IsOneProcessAtATime) {
  const RunFolder folder;
  const Recipe recipe = folder.recipe();
  {
    const Result<RunLock> held = RunLock::take(recipe.run);
    ASSERT_TRUE(held.is_ok()) << held.status().message();
    for (const ExistingRun existing : {ExistingRun::kRefuse, ExistingRun::kResume, ExistingRun::kOverwrite}) {
      const Status status = train(recipe, options(existing)).status();
      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
      EXPECT_THAT(status.message(), HasSubstr("run: another process is training in this folder"));
    }
  }
  EXPECT_FALSE(fs::exists(recipe.run));  // empty, and made for the lock
  EXPECT_TRUE(train(recipe, options(ExistingRun::kRefuse, 1)).is_ok());
  EXPECT_TRUE(RunLock::take(recipe.run).is_ok());
  EXPECT_TRUE(fs::exists(recipe.run));
  folder.write("file", "");
  EXPECT_THAT(RunLock::take(folder.path("file")).status().message(), HasSubstr("file: cannot make the run's folder"));
}

TEST(RunFolder, LosesWhatAKilledProcessLeft) {
  const RunFolder folder;
  const Recipe recipe = folder.recipe();
  // Killed before the run's first file was there, and later in the middle of a checkpoint.
  fs::create_directories(folder.path("run/checkpoints"));
  folder.write("run/.recipe.json.tmp-71-0", "{");
  ASSERT_TRUE(train(recipe, options(ExistingRun::kRefuse, 1)).is_ok());
  EXPECT_FALSE(fs::exists(folder.path("run/.recipe.json.tmp-71-0")));
  folder.write("run/checkpoints/.step-00000004.pt.tmp-72-0", "PK");
  folder.write("run/checkpoints/notes", "of somebody");
  ASSERT_TRUE(train(recipe, options(ExistingRun::kResume, 1)).is_ok());
  EXPECT_FALSE(fs::exists(folder.path("run/checkpoints/.step-00000004.pt.tmp-72-0")));
  EXPECT_TRUE(fs::exists(folder.path("run/checkpoints/notes")));
}

TEST(RunFolder, AStartThatFailsTouchesNothing) {
  const RunFolder folder;
  ASSERT_TRUE(train(folder.recipe(), options(ExistingRun::kRefuse, 2)).is_ok());
  fs::create_directories(folder.path("base"));
  fs::copy_file(folder.path("run/config.json"), folder.path("base/config.json"));
  json recipe_json = RunFolder::recipe_json();
  recipe_json["init"] = {{"from", "base"}};
  recipe_json["require_loss_mask"] = false;
  folder.write_recipe(recipe_json);
  const auto refusal = [&](const std::vector<std::string>& overrides = {}) {
    return train(folder.recipe(RunKind::kSft, overrides), options(ExistingRun::kOverwrite)).status().message();
  };
  EXPECT_THAT(refusal(), HasSubstr("init.from: "));
  // A checkpoint of another model.
  fs::create_directories(folder.path("base/checkpoints"));
  fs::copy_file(checkpoint_path(folder.path("run"), 2), checkpoint_path(folder.path("base"), 2));
  json other = RunFolder::model_json();
  other["text_config"]["hidden_size"] = 24;
  folder.write("other.json", other.dump());
  EXPECT_THAT(refusal({"model=" + folder.path("other.json")}), HasSubstr("init.from: "));
  EXPECT_THAT(list_checkpoints(folder.path("run")), ElementsAre(2));
  EXPECT_EQ(folder.log("run").size(), 2u);
  EXPECT_FALSE(json::parse(test::read_text(folder.path("run/recipe.json")))["init"].contains("from"));
}

TEST(RunFolder, AModelThatNoMemoryHoldsIsRefused) {
  const RunFolder folder;
  const std::string k3 = test::data_path("../../configs/k3.json");
  json recipe_json = RunFolder::recipe_json();
  recipe_json["model"] = k3;
  folder.write_recipe(recipe_json);
  const Status status = train(folder.recipe(), options(ExistingRun::kRefuse)).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("model: training 2779484478208 parameters needs more than 33354 GB"));
  EXPECT_FALSE(fs::exists(folder.path("run")));
}

TEST(TokenizerFiles, FitTheModelOrAreRefusedByName) {
  const RunFolder folder;
  const std::string good_ranks = "IQ== 0\nIg== 38\n";
  const std::string good_names = R"({"added_tokens_decoder": {"39": {"content": "<|end_of_msg|>"}}})";
  struct Case {
    std::string ranks, names, message;
  };
  const Case cases[] = {
      {"", good_names, "tiktoken.model: expected a line a token, found an empty file"},
      {"IQ== 0\ngarbage\n", good_names, "tiktoken.model line 2: expected a token in base64 and its rank"},
      {"IQ== x\n", good_names, "tiktoken.model line 1: expected"},
      {"IQ== -1\n", good_names, "tiktoken.model line 1: expected"},
      {"IQ== 40\n", good_names, "tiktoken.model: expected ids below the model's vocabulary, 40, found 40"},
      {good_ranks, "garbage", "tokenizer_config.json: expected a JSON object"},
      {good_ranks, R"({"added_tokens_decoder": 5})", "added_tokens_decoder: expected an object"},
      {good_ranks, R"({"added_tokens_decoder": {"x": {"content": "a"}}})", "expected ids as keys, found \"x\""},
      {good_ranks, R"({"added_tokens_decoder": {"41": {"content": "a"}}})", "vocabulary, 40, found 41"},
      {good_ranks, R"({"added_tokens_decoder": {"5": {"content": 7}}})", "added_tokens_decoder.5: expected an object"},
      {good_ranks, good_names, ""},
      {good_ranks, "{}", ""},
  };
  fs::create_directories(folder.path("tok"));
  for (const Case& c : cases) {
    folder.write("tok/tiktoken.model", c.ranks);
    folder.write("tok/tokenizer_config.json", c.names);
    const Status status = check_tokenizer_files(folder.path("tok"), test::kRunVocab);
    EXPECT_EQ(status.is_ok(), c.message.empty()) << c.ranks << c.names;
    EXPECT_THAT(status.message(), HasSubstr(c.message));
  }
  folder.write("tok/tiktoken.model", "IQ== 40\n");
  const Recipe recipe = folder.recipe(RunKind::kPretrain, {"tokenizer=" + folder.path("tok")});
  EXPECT_THAT(train(recipe, options(ExistingRun::kRefuse)).status().message(), HasSubstr("tokenizer: "));
  EXPECT_FALSE(fs::exists(recipe.run));
}

}  // namespace
}  // namespace tandem::train

// Recipes: defaults, overrides, globs, and every fault named by its key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/run/recipe.h"
#include "train/run_support.h"

namespace tandem::train {
namespace {

using nlohmann::json;
using test::RunFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Recipe, ReadsAndFillsIn) {
  const RunFolder folder;
  const Recipe recipe = folder.recipe();
  EXPECT_EQ(recipe.run, folder.path("run"));
  EXPECT_EQ(recipe.model, folder.path("model.json"));
  EXPECT_THAT(recipe.data.at("text"), ElementsAre(folder.path("a.bin"), folder.path("b.bin")));
  ASSERT_EQ(recipe.curriculum.size(), 2u);
  EXPECT_EQ(recipe.curriculum[1].length, 64);
  EXPECT_EQ(recipe.curriculum[1].pack, PackMode::kWholeDocuments);
  EXPECT_EQ(recipe.optimizer.learning_rate, 0.01);
  EXPECT_EQ(recipe.optimizer.weight_decay, 0.1);
  EXPECT_EQ(recipe.optimizer.warmup_share, 0.01);
  EXPECT_EQ(recipe.balancing, BalancingKind::kHistogram);
  EXPECT_FALSE(recipe.mxfp4_experts);
  EXPECT_FALSE(recipe.compute.has_value());
  EXPECT_EQ(recipe.longest_length(), 64);
}

// What is written into the run's folder is a recipe again, and the same one.
TEST(Recipe, WritesWhatItReads) {
  const RunFolder folder;
  const std::string written = recipe_json(folder.recipe());
  folder.write("again.json", written);
  const Result<Recipe> again = load_recipe(folder.path("again.json"), RunKind::kPretrain);
  ASSERT_TRUE(again.is_ok()) << again.status().message();
  EXPECT_EQ(recipe_json(again.value()), written);
}

TEST(Recipe, Overrides) {
  const RunFolder folder;
  const Recipe recipe =
      folder.recipe(RunKind::kPretrain, {"optimizer.learning_rate=1e-3", "curriculum.1.tokens=1e6", "balancing=exact",
                                         "checkpoint.keep=7", "run=" + folder.path("elsewhere"), "log_every_steps=3"});
  EXPECT_EQ(recipe.optimizer.learning_rate, 1e-3);
  EXPECT_EQ(recipe.curriculum[1].tokens, 1'000'000);
  EXPECT_EQ(recipe.balancing, BalancingKind::kExact);
  EXPECT_EQ(recipe.checkpoint_keep, 7);
  EXPECT_EQ(recipe.run, folder.path("elsewhere"));
  // A path on the command line is relative to where the command runs.
  EXPECT_EQ(folder.recipe(RunKind::kPretrain, {"run=x/y"}).run, (std::filesystem::current_path() / "x/y").string());
  for (const char* wrong : {"seed", "=1", "curriculum.5.tokens=1", "seed.deep=1"}) {
    const std::vector<std::string> overrides = {wrong};
    const Result<Recipe> refused = load_recipe(folder.path("recipe.json"), RunKind::kPretrain, overrides);
    ASSERT_FALSE(refused.is_ok()) << wrong;
    EXPECT_THAT(refused.status().message(), HasSubstr(cat("--set ", wrong)));
  }
}

struct Fault {
  const char* change;   // JSON merge patch
  const char* message;  // part of the line that names it
};

TEST(Recipe, NamesTheKeyOfEveryFault) {
  const RunFolder folder;
  const Fault faults[] = {
      {R"({"batchtokens": 1})", "batchtokens: expected one of"},
      {R"({"optimizer": {"lr": 1}})", "optimizer.lr: expected one of"},
      {R"({"optimizer": {"learning_rate": 0}})", "optimizer.learning_rate: expected a number above 0, found 0"},
      {R"({"optimizer": {"learning_rate": null}})", "optimizer.learning_rate: expected"},
      {R"({"optimizer": {"muon_momentum": 1}})", "optimizer.muon_momentum: expected a number from 0"},
      {R"({"optimizer": {"warmup_share": "x"}})", "optimizer.warmup_share: expected a finite number, found \"x\""},
      {R"({"optimizer": 3})", "optimizer: expected an object, found 3"},
      {R"({"run": null})", "run: expected the folder of the run, found nothing"},
      {R"({"run": 4})", "run: expected a string, found 4"},
      {R"({"model": "none.json"})", "model: expected a file, found nothing at"},
      {R"({"tokenizer": "none"})", "tokenizer: expected a file, found nothing at"},
      {R"({"init": {"seed": -1}})", "init.seed: expected an integer from 0"},
      {R"({"init": {"seed": 1, "from": "x"}})", "init.seed: expected one of seed and from, found both"},
      {R"({"init": {"from": "none"}})", "init.from: expected a file, found nothing at"},
      {R"({"data": null})", "data: expected an object of names"},
      {R"({"data": {"text": []}})", "data.text: expected a list of paths or globs"},
      {R"({"data": {"text": [5]}})", "data.text.0: expected a path or a glob, found 5"},
      {R"({"data": {"text": ["c*.bin"]}})", "data.text: expected token shards, found nothing at"},
      {R"({"curriculum": []})", "curriculum: expected a list of stages"},
      {R"({"curriculum": [7]})", "curriculum.0: expected an object, found 7"},
      {R"({"curriculum": [{"data": "x", "length": 32, "tokens": 1}]})",
       "curriculum.0.data: expected a name under data"},
      {R"({"curriculum": [{"data": "text", "length": 1, "tokens": 1}]})",
       "curriculum.0.length: expected an integer from 2"},
      {R"({"curriculum": [{"data": "text", "length": 48, "tokens": 1}]})",
       "curriculum.0.length: expected a length that divides batch_tokens, 128, found 48"},
      {R"({"curriculum": [{"data": "text", "length": 32, "tokens": 0.5}]})",
       "curriculum.0.tokens: expected an integer"},
      {R"({"curriculum": [{"data": "text", "length": 32}]})", "curriculum.0.tokens: expected an integer"},
      {R"({"curriculum": [{"data": "text", "length": 32, "tokens": 1, "pack": "best"}]})",
       "curriculum.0.pack: expected \"stream\" or \"documents\", found \"best\""},
      {R"({"validation": {"data": "gone"}})", "validation.data: expected a name under data, found \"gone\""},
      {R"({"validation": {"steps": 1}})", "validation.steps: expected one of"},
      {R"({"batch_tokens": null})", "batch_tokens: expected an integer"},
      {R"({"micro_batch_tokens": 16})", "micro_batch_tokens: expected at least the longest length, 64, found 16"},
      {R"({"compute": "fp16"})", "compute: expected \"bf16\" or \"fp32\", found \"fp16\""},
      {R"({"balancing": "auto"})", "balancing: expected \"histogram\" or \"exact\" or \"none\""},
      {R"({"mxfp4_experts": 1})", "mxfp4_experts: expected true or false, found 1"},
      {R"({"mxfp8_activations": "no"})", "mxfp8_activations: expected true or false, found \"no\""},
      {R"({"chunk_size": 48})", "chunk_size: expected a power of two"},
      {R"({"checkpoint": {"keep": 0}})", "checkpoint.keep: expected an integer from 1"},
      {R"({"checkpoint": {"every": 1}})", "checkpoint.every: expected one of"},
      {R"({"explode_factor": 0})", "explode_factor: expected a number from 1"},
      {R"({"seed": 1.5})", "seed: expected an integer"},
  };
  for (const Fault& fault : faults) {
    json recipe = RunFolder::recipe_json();
    recipe.merge_patch(json::parse(fault.change));
    folder.write_recipe(recipe);
    const Result<Recipe> refused = load_recipe(folder.path("recipe.json"), RunKind::kPretrain);
    ASSERT_FALSE(refused.is_ok()) << fault.change;
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.status().message(), HasSubstr(cat('\n', fault.message))) << fault.change;
  }
}

TEST(Recipe, NamesAllFaultsAtOnce) {
  const RunFolder folder;
  folder.write_recipe({{"run", "run"}, {"model", 3}, {"seed", "x"}});
  const Status status = load_recipe(folder.path("recipe.json"), RunKind::kPretrain).status();
  for (const char* key : {"model", "seed", "data", "curriculum", "batch_tokens", "optimizer.learning_rate"}) {
    EXPECT_THAT(status.message(), HasSubstr(cat('\n', key, ": expected")));
  }
  folder.write("recipe.json", "[1]");
  EXPECT_THAT(load_recipe(folder.path("recipe.json"), RunKind::kPretrain).status().message(), HasSubstr("a list of 1"));
  folder.write("recipe.json", "{");
  EXPECT_THAT(load_recipe(folder.path("recipe.json"), RunKind::kPretrain).status().message(), HasSubstr("no JSON"));
  EXPECT_EQ(load_recipe(folder.path("none.json"), RunKind::kPretrain).status().code(), StatusCode::kNotFound);
}

TEST(Recipe, FineTuningHasDefaultsOfItsOwn) {
  const RunFolder folder;
  EXPECT_THAT(load_recipe(folder.path("recipe.json"), RunKind::kSft).status().message(),
              HasSubstr("init.from: expected the run or model folder"));
  std::filesystem::create_directories(folder.path("base"));
  folder.write("base/config.json", RunFolder::model_json().dump());
  json recipe = RunFolder::recipe_json();
  recipe["init"] = {{"from", "base"}};
  recipe.erase("model");
  folder.write_recipe(recipe);
  const Recipe sft = folder.recipe(RunKind::kSft);
  EXPECT_EQ(sft.model, folder.path("base/config.json"));
  EXPECT_TRUE(sft.mxfp4_experts);
  EXPECT_TRUE(sft.require_loss_mask);
  EXPECT_FALSE(folder.recipe(RunKind::kSft, {"mxfp4_experts=false"}).mxfp4_experts);
}

// --overwrite would clear what the run begins with.
TEST(Recipe, ARunHasAFolderOfItsOwn) {
  const RunFolder folder;
  json recipe = RunFolder::recipe_json();
  recipe["init"] = {{"from", "base"}};
  for (const char* name : {"base/config.json", "base/tiktoken.model", "base/tokenizer_config.json"}) {
    folder.write(name, "{}");
  }
  folder.write_recipe(recipe);
  for (const char* run : {"base", "base/", "./base/."}) {
    const std::vector<std::string> overrides = {cat("run=", folder.path(run))};
    const Status status = load_recipe(folder.path("recipe.json"), RunKind::kSft, overrides).status();
    EXPECT_THAT(status.message(), HasSubstr("run: expected another folder than that of init.from"));
    EXPECT_THAT(status.message(), HasSubstr("run: expected another folder than that of tokenizer"));
  }
  EXPECT_TRUE(load_recipe(folder.path("recipe.json"), RunKind::kSft).is_ok());
}

}  // namespace
}  // namespace tandem::train

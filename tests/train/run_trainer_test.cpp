// Whole runs: interrupted and resumed against uninterrupted, bit for bit; stops at a bad step; damaged checkpoints.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "support/golden.h"
#include "train/export/export_model.h"
#include "train/run/train_checkpoint.h"
#include "train/run/trainer.h"
#include "train/run_support.h"

namespace tandem::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::RunFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TrainOptions options(ExistingRun existing = ExistingRun::kRefuse, std::optional<int64_t> max_steps = std::nullopt) {
  TrainOptions options;
  options.device = "cpu";
  options.existing = existing;
  options.max_steps = max_steps;
  return options;
}

TrainSummary run(const Recipe& recipe, const TrainOptions& how = options()) {
  const Result<TrainSummary> summary = train(recipe, how);
  EXPECT_TRUE(summary.is_ok()) << summary.status().message();
  return summary.is_ok() ? summary.value() : TrainSummary{};
}

void expect_same(const NamedTensors& a, const NamedTensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].first, b[i].first);
    EXPECT_TRUE(a[i].second.equal(b[i].second)) << a[i].first;
  }
}

// Parameters, optimiser state and every logged number but times.
void expect_same_run(const RunFolder& folder, const std::string& a, const std::string& b, int64_t step) {
  const TrainCheckpoint left = read_checkpoint(checkpoint_path(folder.path(a), step)).value();
  const TrainCheckpoint right = read_checkpoint(checkpoint_path(folder.path(b), step)).value();
  expect_same(left.parameters, right.parameters);
  expect_same(left.optimizer, right.optimizer);
  expect_same(left.balancer, right.balancer);
  EXPECT_EQ(left.state.num_optimizer_steps, right.state.num_optimizer_steps);
  EXPECT_EQ(left.state.recent_losses, right.state.recent_losses);
  EXPECT_EQ(folder.log(a), folder.log(b));
}

TEST(Training, ResumedIsUninterrupted) {
  const RunFolder folder;
  const TrainSummary whole = run(folder.recipe(RunKind::kPretrain, {"run=" + folder.path("whole")}));
  EXPECT_TRUE(whole.is_finished());
  EXPECT_EQ(whole.num_steps, 12);
  EXPECT_EQ(whole.tokens, 12 * 128);
  EXPECT_EQ(folder.log("whole").size(), 12u + 2u);
  EXPECT_THAT(list_checkpoints(folder.path("whole")), ElementsAre(8, 12));

  const Recipe recipe = folder.recipe(RunKind::kPretrain, {"run=" + folder.path("pieces")});
  EXPECT_EQ(run(recipe, options(ExistingRun::kResume, 3)).step, 3);  // nothing to go on from: starts
  EXPECT_THAT(list_checkpoints(folder.path("pieces")), ElementsAre(3));
  EXPECT_EQ(run(recipe, options(ExistingRun::kResume, 4)).step, 7);
  // A killed run: the log is ahead of the checkpoints.
  fs::remove(checkpoint_path(folder.path("pieces"), 7));
  EXPECT_THAT(list_checkpoints(folder.path("pieces")), ElementsAre(4));
  EXPECT_TRUE(run(recipe, options(ExistingRun::kResume)).is_finished());
  expect_same_run(folder, "whole", "pieces", 12);
  // A finished run has nothing left to do.
  const TrainSummary again = run(recipe, options(ExistingRun::kResume));
  EXPECT_TRUE(again.is_finished());
  EXPECT_FALSE(again.loss.has_value());
  EXPECT_EQ(folder.log("whole"), folder.log("pieces"));
}

// Interrupted in the middle of a window of expert loads, after its last step, and in the next one.
TEST(Training, ResumedCountsWholeWindowsOfExpertLoad) {
  const RunFolder folder;
  json recipe_json = RunFolder::recipe_json();
  recipe_json["curriculum"] = {{{"data", "text"}, {"length", 32}, {"tokens", 66 * 32}, {"pack", "stream"}}};
  recipe_json.update({{"batch_tokens", 32}, {"micro_batch_tokens", 32}, {"checkpoint", {{"every_steps", 1000}}}});
  folder.write_recipe(recipe_json);
  run(folder.recipe(RunKind::kPretrain, {"run=" + folder.path("whole")}));
  const Recipe pieces = folder.recipe(RunKind::kPretrain, {"run=" + folder.path("pieces")});
  for (const int64_t steps : {41, 23, 2}) run(pieces, options(ExistingRun::kResume, steps));
  expect_same_run(folder, "whole", "pieces", 66);
  std::vector<int64_t> with_window;
  for (const json& line : folder.log("pieces")) {
    if (!line.contains("expert_load_64")) continue;
    with_window.push_back(line["step"]);
    EXPECT_GE(line["expert_load_64"]["mean"], 1.0);
    EXPECT_GE(line["expert_load_64"]["worst"], line["expert_load_64"]["mean"]);
    EXPECT_LE(line["expert_load_64"]["worst"], 2.0);  // all tokens on the two of four experts that each chooses
  }
  EXPECT_THAT(with_window, ElementsAre(64));
}

TEST(Training, ResumedFineTuningIsUninterrupted) {
  const RunFolder folder;
  run(folder.recipe());
  json recipe_json = RunFolder::recipe_json();
  recipe_json["init"] = {{"from", "run"}};
  recipe_json["curriculum"] = {{{"data", "chat"}, {"length", 64}, {"tokens", 768}, {"pack", "documents"}}};
  recipe_json["balancing"] = "exact";
  recipe_json["mxfp8_activations"] = true;
  folder.write_recipe(recipe_json);
  const Recipe whole = folder.recipe(RunKind::kSft, {"run=" + folder.path("whole")});
  EXPECT_TRUE(whole.mxfp4_experts);
  run(whole);
  const Recipe pieces = folder.recipe(RunKind::kSft, {"run=" + folder.path("pieces")});
  run(pieces, options(ExistingRun::kRefuse, 2));
  run(pieces, options(ExistingRun::kResume));
  expect_same_run(folder, "whole", "pieces", 6);
  // The first step begins where the other run ended.
  const TrainModel base = load_run_model(folder.path("run"), std::nullopt, at::kCPU).value();
  const TrainModel tuned = load_run_model(folder.path("whole"), 6, at::kCPU).value();
  const at::Tensor moved = base.parameters()[0].value.detach() - tuned.parameters()[0].value.detach();
  EXPECT_GT(moved.abs().max().item<double>(), 0);
  EXPECT_LT(moved.abs().max().item<double>(), 6 * 0.01 * 1.5);  // AdamW moves less than 1.5 rates a step

  // Without a mask there is nothing that says what to train on.
  const Recipe unmasked = folder.recipe(RunKind::kSft, {"run=" + folder.path("x"), "curriculum.0.data=text"});
  EXPECT_THAT(train(unmasked, options()).status().message(), HasSubstr("expected a loss mask"));
}

// A model in the released format is a start too: with an F32 trunk and quantised experts the first step is that of the
// run.
TEST(Training, FineTuningBeginsFromAnExportedModel) {
  const RunFolder folder;
  run(folder.recipe());
  ExportOptions released;
  released.output_dir = folder.path("released");
  released.config_json = test::read_text(folder.path("model.json"));
  released.format.trunk_f32 = true;
  ASSERT_TRUE(export_model(load_run_model(folder.path("run"), std::nullopt, at::kCPU).value(), released).is_ok());
  const auto first_loss = [&](const std::string& from) {
    json recipe_json = RunFolder::recipe_json();
    recipe_json["init"] = {{"from", from}};
    recipe_json["curriculum"] = {{{"data", "chat"}, {"length", 64}, {"tokens", 768}, {"pack", "documents"}}};
    folder.write_recipe(recipe_json);
    return run(folder.recipe(RunKind::kSft, {"run=" + folder.path("from-" + from)}), options(ExistingRun::kRefuse, 1))
        .loss;
  };
  EXPECT_EQ(first_loss("run"), first_loss("released"));
}

TEST(Training, WritesTheRunFolder) {
  const RunFolder folder;
  fs::create_directories(folder.path("tok"));
  folder.write("tok/tiktoken.model", "IQ== 0\n");
  folder.write("tok/tokenizer_config.json", R"({"added_tokens_decoder": {"39": {"content": "<|end_of_msg|>"}}})");
  const Recipe recipe = folder.recipe(RunKind::kPretrain, {"tokenizer=" + folder.path("tok")});
  run(recipe, options(ExistingRun::kRefuse, 1));
  EXPECT_EQ(test::read_text(folder.path("run/recipe.json")), recipe_json(recipe));
  EXPECT_EQ(test::read_text(folder.path("run/config.json")), test::read_text(folder.path("model.json")));
  EXPECT_EQ(test::read_text(folder.path("run/tiktoken.model")), "IQ== 0\n");
  EXPECT_EQ(json::parse(test::read_text(folder.path("run/generation_config.json")))["eos_token_id"], 39);
  const json line = folder.log("run").at(0);
  for (const char* key : {"step", "tokens", "loss", "learning_rate", "grad_norm", "expert_load", "expert_load_mean"}) {
    EXPECT_TRUE(line.contains(key)) << key;
  }
  EXPECT_EQ(line["expert_load"].size(), 2u);

  EXPECT_THAT(train(recipe, options()).status().message(), HasSubstr("--resume"));
  EXPECT_EQ(run(recipe, options(ExistingRun::kOverwrite, 2)).step, 2);
  folder.write("other.txt", "");
  EXPECT_THAT(train(folder.recipe(RunKind::kPretrain, {"run=" + folder.path("")}), options()).status().message(),
              HasSubstr("expected a new folder, an empty one or a run"));
}

TEST(Training, RefusesAnotherRecipe) {
  const RunFolder folder;
  run(folder.recipe(), options(ExistingRun::kRefuse, 1));
  const std::pair<const char*, const char*> refused[] = {
      {"seed=6", "seed: the run has 5, the recipe 6"},
      {"optimizer.learning_rate=0.02", "optimizer.learning_rate: the run has 0.01, the recipe 0.02"},
      {"batch_tokens=256", "batch_tokens: the run has 128, the recipe 256"},
      {"curriculum.0.tokens=2048", "curriculum.0.tokens: the run has 1024, the recipe 2048"},
      {"data.text=[\"a.bin\"]", "data.text.1: the run has"},
      {"mxfp4_experts=true", "mxfp4_experts: the run has false, the recipe true"},
      {"mxfp8_activations=true", "mxfp8_activations: the run has false, the recipe true"},
      {"init.seed=2", "init.seed: the run has 1, the recipe 2"},
  };
  for (const auto& [setting, message] : refused) {
    std::string text = setting;
    if (text.starts_with("data.")) text = cat("data.text=[\"", folder.path("a.bin"), "\"]");
    const Status status = train(folder.recipe(RunKind::kPretrain, {text}), options(ExistingRun::kResume)).status();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << text;
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
  // The same content in another place, and what only decides speed and reporting.
  fs::rename(folder.path("a.bin"), folder.path("aa.bin"));
  const std::string moved = cat("data.text=[\"", folder.path("aa.bin"), "\",\"", folder.path("b.bin"), "\"]");
  EXPECT_EQ(run(folder.recipe(RunKind::kPretrain, {moved, "micro_batch_tokens=128", "checkpoint.keep=1",
                                                   "log_every_steps=1", "validation.every_steps=2"}),
                options(ExistingRun::kResume, 1))
                .step,
            2);
}

TEST(Training, Mxfp8InputsNeedWholeGroups) {
  const RunFolder folder;
  json model = RunFolder::model_json();
  model["text_config"]["moe_intermediate_size"] = 40;
  folder.write("model.json", model.dump());
  const Status status = train(folder.recipe(RunKind::kPretrain, {"mxfp8_activations=true"}), options()).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("expected experts whose inputs are multiples of 32 wide, found 32 and 40"));
}

TEST(Training, StopsBeforeARuinedModelIsSaved) {
  const RunFolder folder;
  const Recipe recipe = folder.recipe(RunKind::kPretrain, {"optimizer.learning_rate=1e30", "checkpoint.every_steps=1"});
  const Status status = train(recipe, options()).status();
  EXPECT_EQ(status.code(), StatusCode::kNonFinite);
  EXPECT_THAT(status.message(), HasSubstr("bad-step-1.json"));
  EXPECT_TRUE(list_checkpoints(recipe.run).empty());
}

TEST(Training, StopsAtANaN) {
  const RunFolder folder;
  const Recipe recipe = folder.recipe(RunKind::kPretrain, {"optimizer.learning_rate=1e30"});
  const Status status = train(recipe, options()).status();
  EXPECT_EQ(status.code(), StatusCode::kNonFinite);
  EXPECT_THAT(status.message(), HasSubstr("step 2: the "));
  EXPECT_THAT(status.message(), HasSubstr("No checkpoint was written before it"));
  const json dump = json::parse(test::read_text(folder.path("run/bad-step-2.json")));
  EXPECT_EQ(dump["step"], 2);
  EXPECT_EQ(folder.log("run").size(), 1u);
  ASSERT_EQ(dump["sequences"].size(), 4u);
  const json& sequence = dump["sequences"][0];
  EXPECT_EQ(sequence["data"], "text");
  EXPECT_EQ(sequence["tokens"].size(), 32u);
  EXPECT_THAT(sequence["shard"].get<std::string>(), HasSubstr(".bin"));
  // The tokens are those of the shard at the place that is named.
  const TokenShard shard = TokenShard::open(sequence["shard"]).value();
  EXPECT_EQ(shard.token(sequence["token"]), sequence["tokens"][0]);
  EXPECT_GT(dump["grad_norms"].size(), 30u);
}

// A loss above what was usual ends the run with the checkpoint before it in place.
TEST(Training, StopsAtAnExplosion) {
  const RunFolder folder;
  EXPECT_EQ(run(folder.recipe(), options(ExistingRun::kRefuse, 4)).step, 4);
  // The same state with the memory of better losses.
  const std::string path = checkpoint_path(folder.path("run"), 4);
  TrainCheckpoint saved = read_checkpoint(path).value();
  TrainModel model = load_run_model(folder.path("run"), 4, at::kCPU).value();
  Optimizer optimizer(model.config(), model.parameters(), {});
  ASSERT_TRUE(restore_optimizer(saved, optimizer).is_ok());
  const RouterBalancer balancer(model, BalancingKind::kNone);
  saved.state.recent_losses.assign(20, 1.25);
  ASSERT_TRUE(save_checkpoint(path, saved.state, model, optimizer, balancer).is_ok());
  const std::string before = test::read_text(path);
  const Recipe strict = folder.recipe(RunKind::kPretrain, {"explode_factor=2"});
  const Status status = train(strict, options(ExistingRun::kResume)).status();
  EXPECT_EQ(status.code(), StatusCode::kNonFinite);
  EXPECT_THAT(status.message(), HasSubstr("step 5: the loss is "));
  EXPECT_THAT(status.message(), HasSubstr("above 2.5: explode_factor 2 times the recent 1.25"));
  EXPECT_THAT(status.message(), HasSubstr("step-00000004.pt"));
  EXPECT_EQ(test::read_text(path), before);
  EXPECT_EQ(json::parse(test::read_text(folder.path("run/bad-step-5.json")))["step"], 5);
  EXPECT_EQ(run(folder.recipe(RunKind::kPretrain, {"explode_factor=9"}), options(ExistingRun::kResume, 1)).step, 5);
}

TEST(Training, PassesOverDamagedCheckpoints) {
  const RunFolder folder;
  const Recipe recipe = folder.recipe(RunKind::kPretrain, {"checkpoint.keep=9"});
  run(recipe);
  const std::string newest = checkpoint_path(recipe.run, 12), middle = checkpoint_path(recipe.run, 8);
  const TrainCheckpoint whole = read_checkpoint(newest).value();
  // One cut short, one with a single bit of a tensor changed.
  fs::resize_file(newest, fs::file_size(newest) / 2);
  std::string bytes = test::read_text(middle);
  const NamedTensors tensors = read_checkpoint(middle).value().parameters;
  const auto* raw = static_cast<const char*>(tensors[3].second.data_ptr());
  const size_t place = bytes.find(std::string(raw, 16));
  ASSERT_NE(place, std::string::npos);
  bytes[place + 9] = static_cast<char>(bytes[place + 9] ^ 4);
  folder.write("run/checkpoints/step-00000008.pt", bytes);
  EXPECT_THAT(read_checkpoint(newest).status().message(), HasSubstr("step-00000012.pt: expected a complete"));
  EXPECT_THAT(read_checkpoint(middle).status().message(), HasSubstr("found a damaged one"));
  TrainOptions how = options(ExistingRun::kResume);
  std::string said;
  how.progress = [&](const std::string& line) { said += line + "\n"; };
  EXPECT_TRUE(run(recipe, how).is_finished());
  EXPECT_THAT(said, HasSubstr("step-00000012.pt"));
  EXPECT_THAT(said, HasSubstr("step-00000008.pt"));
  EXPECT_TRUE(fs::exists(middle + ".damaged"));
  expect_same(read_checkpoint(newest).value().parameters, whole.parameters);
}

// A full disk, for which the limit on file sizes stands: what was written before stays and is gone on from.
TEST(Training, SurvivesAFullDisk) {
  const RunFolder folder;
  const Recipe recipe = folder.recipe();
  run(recipe, options(ExistingRun::kRefuse, 2));
  const std::string before = test::read_text(checkpoint_path(recipe.run, 2));
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small = {before.size() / 2, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = train(recipe, options(ExistingRun::kResume)).status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("step-00000004.pt"));
  EXPECT_THAT(list_checkpoints(recipe.run), ElementsAre(2));
  EXPECT_EQ(test::read_text(checkpoint_path(recipe.run, 2)), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(recipe.run + "/checkpoints"), fs::directory_iterator()), 1);
  EXPECT_TRUE(run(recipe, options(ExistingRun::kResume)).is_finished());
}

TEST(Training, NamesWhatIsMissing) {
  const RunFolder folder;
  EXPECT_EQ(load_run_model(folder.path("none"), std::nullopt, at::kCPU).status().code(), StatusCode::kNotFound);
  const Recipe recipe = folder.recipe();
  run(recipe, options(ExistingRun::kRefuse, 1));
  EXPECT_THAT(load_run_model(recipe.run, 7, at::kCPU).status().message(), HasSubstr("step-00000007.pt"));
  TrainOptions gpu = options(ExistingRun::kResume);
  gpu.device = "gpu";
  EXPECT_THAT(train(recipe, gpu).status().message(), HasSubstr("--device: expected auto, cpu, cuda"));
  fs::remove(folder.path("b.bin"));
  const Status missing = train(recipe, options(ExistingRun::kResume)).status();
  EXPECT_THAT(missing.message(), HasSubstr("data.text: "));
  EXPECT_THAT(missing.message(), HasSubstr("b.bin"));
  EXPECT_THAT(list_checkpoints(recipe.run), ElementsAre(1));
}

}  // namespace
}  // namespace tandem::train

// The MTP layer: gradients in fp64, what a row may see, the loss of a step, the exported tensors, a run.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "engine/score.h"
#include "support/compare.h"
#include "train/export_support.h"
#include "train/gradient_check.h"
#include "train/modules/functional.h"
#include "train/modules/train_model.h"
#include "train/run/train_checkpoint.h"
#include "train/run/train_step.h"
#include "train/run/trainer.h"
#include "train/run_support.h"
#include "train/small_models.h"
#include "train/tensors.h"
#include "weights/checkpoint_check.h"

namespace tandem::train {
namespace {

using test::Json;
using test::RunFolder;

constexpr ForwardOptions kDouble{.compute = at::kDouble};

ModelConfig with_mtp(ModelConfig config) {
  config.num_nextn_predict_layers = 1;
  return config;
}

TrainModel double_model(const ModelConfig& config) {
  return TrainModel::random(with_mtp(config), 5, InitStyle::kCheckpoint, at::kDouble);
}

SequenceLayout packed(std::vector<int64_t> cu_seqlens) {
  return make_sequence_layout(cu_seqlens, 16, at::kCPU).value();
}

at::Tensor mtp_logits(const TrainModel& model, const at::Tensor& tokens, const SequenceLayout& layout,
                      ForwardOptions options = kDouble) {
  at::Tensor before_norm;
  options.before_norm = &before_norm;
  model.hidden(tokens, layout, options);
  return model.head(model.mtp_hidden(before_norm, tokens.roll(-1), layout, options));
}

TEST(Mtp, GradientsOfEveryParameter) {
  for (const ModelConfig& config : {test::small_k3(), test::small_kimi_linear()}) {
    const TrainModel m = double_model(config);
    const std::string inside = m.layer_parameters(config.num_hidden_layers)[TensorRole::kMtpProj].defined()
                                   ? cat("layers.", config.num_hidden_layers, ".")
                                   : "";
    test::NamedTensors inputs;
    int64_t num_inside = 0;
    for (const Parameter& p : m.parameters()) {
      const bool of_mtp = p.group == TensorGroup::kMtp;
      EXPECT_EQ(of_mtp, p.name.find(inside) != std::string::npos) << p.name;
      num_inside += of_mtp ? 1 : 0;
      // Its own tensors, and text tensors that the loss reaches through the embedding, the head and the rows it reads.
      const bool of_text = p.layer < 0;
      if (p.trainable && (of_mtp || of_text)) inputs.emplace_back(p.name, p.value);
    }
    EXPECT_GE(num_inside, 17);
    const at::Tensor tokens = (at::arange(20, at::kLong) * 7).remainder(19);
    const SequenceLayout layout = packed({0, 14, 20});
    test::expect_gradients(
        [&] {
          return cross_entropy(mtp_logits(m, tokens, layout), tokens.roll(-2), at::ones({20}, at::kDouble))
              .reshape({1});
        },
        inputs, 2, {"language_model.model.norm.weight", "model.norm.weight"});
  }
}

// A row sees the tokens up to the one behind it, in its own document; at a document's first row that one is left out.
TEST(Mtp, WhatARowSees) {
  const c10::NoGradGuard no_grad;
  const TrainModel m = double_model(test::small_k3());
  const std::vector<int64_t> bounds = {0, 9, 20};
  const SequenceLayout layout = packed(bounds);
  const at::Tensor tokens = (at::arange(20, at::kLong) * 7).remainder(19);
  const at::Tensor logits = mtp_logits(m, tokens, layout);
  const auto changed_rows = [&](int64_t token) {
    at::Tensor other = tokens.clone();
    other.select(0, token).copy_((other.select(0, token) + 1).remainder(19));
    const at::Tensor difference = (mtp_logits(m, other, layout) - logits).abs().amax(1);
    std::vector<int64_t> rows;
    for (int64_t row = 0; row < 20; ++row) {
      const bool last_of_document = row == 8 || row == 19;  // nothing is trained on it
      if (!last_of_document && difference.select(0, row).item<double>() > 1e-9) rows.push_back(row);
    }
    return rows;
  };
  EXPECT_THAT(changed_rows(5), ::testing::ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(changed_rows(7), ::testing::ElementsAre(6, 7));
  EXPECT_THAT(changed_rows(10), ::testing::ElementsAre(10, 11, 12, 13, 14, 15, 16, 17, 18));  // not 9
  EXPECT_THAT(changed_rows(19), ::testing::ElementsAre(18));
  for (size_t n = 0; n + 1 < bounds.size(); ++n) {
    const int64_t begin = bounds[n], length = bounds[n + 1] - begin;
    const at::Tensor alone = mtp_logits(m, tokens.narrow(0, begin, length), packed({0, length}));
    const at::Tensor difference = alone - logits.narrow(0, begin, length);
    EXPECT_LE(difference.narrow(0, 0, length - 1).abs().max().item<double>(), 1e-12) << "document " << n;
  }
}

TEST(Mtp, RecomputedIsKept) {
  const TrainModel m = double_model(test::small_k3());
  const at::Tensor tokens = (at::arange(40, at::kLong) * 7).remainder(19);
  const SequenceLayout layout = packed({0, 21, 40});
  at::Tensor logits[2], gradient[2];
  std::vector<Routing> routing[2];
  for (size_t i = 0; i < 2; ++i) {
    ForwardOptions options = kDouble;
    options.recompute_sublayers = i == 1;
    options.routing = &routing[i];
    logits[i] = mtp_logits(m, tokens, layout, options);
    logits[i].square().sum().backward();
    at::Tensor& grad = m.layer_parameters(5)[TensorRole::kExpertW2].mutable_grad();
    gradient[i] = std::exchange(grad, at::Tensor());
  }
  EXPECT_TRUE(logits[0].equal(logits[1]));
  EXPECT_LE((gradient[0] - gradient[1]).abs().max().item<double>(), 1e-11 * gradient[0].abs().max().item<double>());
  ASSERT_EQ(routing[1].size(), 6u);
  EXPECT_TRUE(routing[0][5].ids.equal(routing[1][5].ids));
}

// Against a loop over the rows: the target is the token after next where the document has one that is trained.
TEST(Mtp, LossOfAStep) {
  const RunFolder folder;
  ModelConfig config = with_mtp(test::small_k3());
  config.vocab_size = test::kRunVocab;
  const RunData data = RunData::open(folder.recipe(), config.vocab_size, std::nullopt).value();
  std::vector<at::Tensor> of_text, of_both[2];
  StepNumbers numbers[3];
  const int64_t micro_batch_tokens[] = {64, 64, 128};
  const double weights[] = {0, 0.5, 0.5};
  double expected = 0;
  for (size_t i = 0; i < 3; ++i) {
    TrainModel model = TrainModel::random(config, 3, InitStyle::kTraining, at::kDouble);
    Optimizer optimizer(config, model.parameters(), {});
    RouterBalancer balancer(model, BalancingKind::kHistogram);
    TrainStep step(model, optimizer, balancer, kDouble, at::kCPU, 1e9, weights[i]);
    const StepBatch batch = make_step_batch(data, 2, {micro_batch_tokens[i], 16, false}).value();
    numbers[i] = step.gradients(batch);
    EXPECT_EQ(numbers[i].expert_load.size(), 5u);  // four text layers and the MTP layer
    for (const Parameter& p : model.parameters()) {
      const at::Tensor gradient = p.value.grad().defined() ? p.value.grad() : at::zeros_like(p.value.detach());
      (i == 0 ? of_text : of_both[i - 1]).push_back(gradient.clone());
    }
    step.apply(0.01);
    EXPECT_GT(model.layer_parameters(5)[TensorRole::kRouterBias].abs().max().item<double>(), 0);
    if (i > 0) continue;
    const c10::NoGradGuard no_grad;
    const TrainModel fresh = TrainModel::random(config, 3, InitStyle::kTraining, at::kDouble);
    for (const MicroBatch& micro : batch.micro_batches) {
      const at::Tensor log_p = mtp_logits(fresh, micro.tokens, micro.layout).log_softmax(1);
      std::map<int64_t, int64_t> target_of;
      for (int64_t t = 0; t < micro.num_trained(); ++t) {
        target_of[micro.trained_rows.select(0, t).item<int64_t>()] = micro.targets.select(0, t).item<int64_t>();
      }
      for (const auto& [row, target] : target_of) {
        const bool follows = micro.layout.position.select(0, row).item<int64_t>() > 0;
        if (follows) expected -= log_p.select(0, row - 1).select(0, target).item<double>();
      }
    }
    expected /= static_cast<double>(batch.num_trained);
  }
  const double rounding = 2 * 128 * std::numeric_limits<double>::epsilon();
  EXPECT_EQ(numbers[0].mtp_loss, 0);
  EXPECT_GT(expected, 1);
  for (size_t i = 1; i < 3; ++i) {
    EXPECT_NEAR(numbers[i].loss, numbers[0].loss, rounding * numbers[0].loss);
    EXPECT_NEAR(numbers[i].mtp_loss, expected, rounding * expected);
  }
  double changed = 0;
  for (size_t p = 0; p < of_text.size(); ++p) {
    changed = std::max(changed, (of_both[0][p] - of_text[p]).abs().max().item<double>());
    EXPECT_LE((of_both[0][p] - of_both[1][p]).abs().max().item<double>(), rounding * numbers[1].grad_norm);
  }
  EXPECT_GT(changed, 1e-4);
}

Json mtp_config() {
  Json config = test::packed_k3();
  config["text_config"]["num_nextn_predict_layers"] = 1;
  return config;
}

// Every declared tensor under its released name; the engine computes what it computes without them.
TEST(Mtp, ExportedAndNotRunByTheEngine) {
  const c10::NoGradGuard no_grad;
  const test::TempFolder scratch;
  const Json config = mtp_config();
  const TrainModel model = test::random_model(config, 31);
  ExportOptions options = test::export_options(config, scratch.path("out"));
  options.format.trunk_f32 = true;
  ASSERT_TRUE(export_model(model, options).is_ok());
  const Checkpoint checkpoint = Checkpoint::open(scratch.path("out")).value();
  int64_t num_mtp = 0, num_stored = 0;
  const auto count = [&](const ExpectedTensor& tensor, const StoredTensor&, std::vector<std::string>&) {
    num_stored += tensor.group == TensorGroup::kMtp ? 1 : 0;
  };
  ASSERT_TRUE(check_checkpoint(checkpoint, model.config(), count).is_clean());
  for_each_expected_tensor(model.config(),
                           [&](const ExpectedTensor& t) { num_mtp += t.group == TensorGroup::kMtp ? 1 : 0; });
  EXPECT_GT(num_mtp, 30);
  EXPECT_EQ(num_stored, num_mtp);

  const TrainModel loaded = std::move(TrainModel::load(checkpoint, model.config())).value();
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const Parameter &saved = model.parameters()[i], &read = loaded.parameters()[i];
    const bool rounded = saved.role == TensorRole::kExpertW1 || saved.role == TensorRole::kExpertW2 ||
                         saved.role == TensorRole::kExpertW3;  // MXFP4 in the file
    EXPECT_TRUE(rounded || read.value.equal(saved.value)) << saved.name;
  }
  auto engine = LoadedModel::load(scratch.path("out"), {});
  ASSERT_TRUE(engine.is_ok()) << engine.status().message();
  ScorePrompt prompt{"p", {}};
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 21; ++i)
    ids.push_back(i * 11 % 300), prompt.tokens.emplace_back(static_cast<int32_t>(ids.back()));
  auto scored = score(*engine.value(), {prompt}, {.batch = true}, [](int64_t, int64_t) {});
  ASSERT_TRUE(scored.is_ok()) << scored.status().message();
  const at::Tensor logits = model.forward(at::tensor(ids, at::kLong), packed({0, 21}), {.mxfp4_experts = true});
  bool found = false;
  for (const ScoreTensor& tensor : scored.value().tensors) {
    if (tensor.name != "p.logits") continue;
    found = true;
    EXPECT_TRUE(test::all_close(std::get<std::vector<float>>(tensor.values), test::floats(logits), 5e-4f));
  }
  EXPECT_TRUE(found);
}

TEST(Mtp, ACheckpointWithoutTheDeclaredLayerIsRefused) {
  const test::TempFolder scratch;
  const Json config = test::packed_k3();
  const TrainModel model = test::random_model(config, 31);
  ASSERT_TRUE(export_model(model, test::export_options(config, scratch.path("out"))).is_ok());
  const Checkpoint checkpoint = Checkpoint::open(scratch.path("out")).value();
  const Result<TrainModel> loaded = TrainModel::load(checkpoint, with_mtp(model.config()));
  ASSERT_FALSE(loaded.is_ok());
  EXPECT_THAT(loaded.status().message(), ::testing::HasSubstr("expected all tensors of the declared MTP layer"));
  EXPECT_FALSE(export_model(model, test::export_options(mtp_config(), scratch.path("other"))).is_ok());
}

TEST(Mtp, ARunLearnsAndResumes) {
  const RunFolder folder;
  nlohmann::json config = RunFolder::model_json();
  TrainOptions options;
  options.device = "cpu";
  options.progress = [](const std::string&) {};
  EXPECT_THAT(train(folder.recipe(RunKind::kPretrain, {"mtp_loss_weight=0.3"}), options).status().message(),
              ::testing::HasSubstr("mtp_loss_weight: expected a model with num_nextn_predict_layers 1"));
  config["text_config"]["num_nextn_predict_layers"] = 2;
  folder.write("model.json", config.dump());
  EXPECT_THAT(train(folder.recipe(), options).status().message(), ::testing::HasSubstr("expected 0 or 1, found 2"));
  config["text_config"]["num_nextn_predict_layers"] = 1;
  folder.write("model.json", config.dump());
  std::vector<TrainModel> models;
  for (const char* name : {"whole", "pieces"}) {
    const Recipe recipe = folder.recipe(RunKind::kPretrain, {"mtp_loss_weight=0.3", "run=" + folder.path(name)});
    options.existing = ExistingRun::kResume;
    options.max_steps = name == std::string("pieces") ? std::optional<int64_t>(5) : std::nullopt;
    ASSERT_TRUE(train(recipe, options).is_ok());
    options.max_steps.reset();
    ASSERT_TRUE(train(recipe, options).is_ok());
    EXPECT_GT(folder.log(name).at(0)["mtp_loss"].get<double>(), 1);
    models.push_back(std::move(load_run_model(recipe.run, 12, at::kCPU)).value());
  }
  const TrainModel start = TrainModel::random(models[0].config(), 1, InitStyle::kTraining);
  for (size_t i = 0; i < start.parameters().size(); ++i) {
    const Parameter& trained = models[0].parameters()[i];
    EXPECT_TRUE(trained.value.equal(models[1].parameters()[i].value)) << trained.name;
    if (trained.group == TensorGroup::kMtp) {
      EXPECT_FALSE(trained.value.equal(start.parameters()[i].value)) << trained.name;
    }
  }
}

}  // namespace
}  // namespace tandem::train

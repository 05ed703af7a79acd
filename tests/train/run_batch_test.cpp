// Batches: what a step reads, targets and boundaries against the shards; a loss that micro-batches do not change.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "train/run/batch_prefetcher.h"
#include "train/run/train_step.h"
#include "train/run_support.h"
#include "train/small_models.h"

namespace tandem::train {
namespace {

using test::RunFolder;

std::vector<int64_t> values(const at::Tensor& tensor) {
  return {tensor.data_ptr<int64_t>(), tensor.data_ptr<int64_t>() + tensor.numel()};
}

// Every row of every step, from the shards themselves: its token, the document that it is in, the token that follows
// in the same document.
TEST(StepBatch, RowsTargetsAndBoundaries) {
  const RunFolder folder;
  const Recipe recipe = folder.recipe();
  const RunData data = RunData::open(recipe, test::kRunVocab, std::nullopt).value();
  const TokenDataset shards = TokenDataset::open(recipe.data.at("text")).value();
  ASSERT_EQ(data.order().num_steps(), 12);
  std::map<uint64_t, int> times_read;  // sequences of the first stage
  for (int64_t step = 0; step < 8; ++step) {
    const StepBatch batch = make_step_batch(data, step, {recipe.micro_batch_tokens, 16, false}).value();
    ASSERT_EQ(batch.places.size(), 4u);
    ASSERT_EQ(batch.micro_batches.size(), 2u);
    EXPECT_EQ(batch.num_tokens, 128);
    int64_t num_trained = 0;
    for (size_t m = 0; m < 2; ++m) {
      const MicroBatch& micro = batch.micro_batches[m];
      const std::vector<int64_t> tokens = values(micro.tokens), trained = values(micro.trained_rows);
      const std::vector<int64_t> targets = values(micro.targets), position = values(micro.layout.position);
      ASSERT_EQ(tokens.size(), 64u);
      num_trained += micro.num_trained();
      std::map<int64_t, int64_t> target_of;
      for (size_t i = 0; i < trained.size(); ++i) target_of[trained[i]] = targets[i];
      ASSERT_EQ(target_of.size(), trained.size());
      for (int64_t row = 0; row < 64; ++row) {
        const SequencePlace& place = batch.places[2 * m + static_cast<size_t>(row / 32)];
        const uint64_t token = place.sequence * 32 + static_cast<uint64_t>(row % 32);
        if (token >= shards.num_tokens()) {  // padding behind the last token
          EXPECT_FALSE(target_of.contains(row));
          continue;
        }
        EXPECT_EQ(tokens[static_cast<size_t>(row)], shards.token(token));
        const TokenRange document = shards.document(shards.document_of(token));
        const uint64_t piece_begin = std::max(document.begin, place.sequence * 32);
        EXPECT_EQ(position[static_cast<size_t>(row)], static_cast<int64_t>(token - piece_begin));
        if (token + 1 < document.end) {
          ASSERT_TRUE(target_of.contains(row));
          EXPECT_EQ(target_of[row], shards.token(token + 1));
        } else {
          EXPECT_FALSE(target_of.contains(row));
        }
      }
    }
    EXPECT_EQ(batch.num_trained, num_trained);
    for (const SequencePlace& place : batch.places) ++times_read[place.sequence];
  }
  // 32 sequences of one permutation, none twice.
  EXPECT_GE(data.stage(0).size(), 32u);
  EXPECT_EQ(times_read.size(), 32u);
}

TEST(StepBatch, MasksAndPadding) {
  const RunFolder folder;
  nlohmann::json json = RunFolder::recipe_json();
  json["curriculum"] = {{{"data", "chat"}, {"length", 64}, {"tokens", 1280}, {"pack", "documents"}}};
  folder.write_recipe(json);
  const Recipe recipe = folder.recipe();
  const RunData data = RunData::open(recipe, test::kRunVocab, std::nullopt).value();
  PackedSequence sequence;
  bool padded = false;
  for (int64_t step = 0; step < data.order().num_steps(); ++step) {
    const StepBatch batch = make_step_batch(data, step, {64, 16, false}).value();
    for (size_t i = 0; i < batch.places.size(); ++i) {
      data.read(batch.places[i], sequence);
      const MicroBatch& micro = batch.micro_batches[i];
      int64_t with_target = 0;
      for (const int32_t target : sequence.targets) with_target += target != kNoTarget;
      EXPECT_EQ(micro.num_trained(), with_target);
      EXPECT_LT(with_target, 40);
      EXPECT_EQ(micro.layout.num_documents, static_cast<int64_t>(sequence.cu_seqlens.size()) - 1);
      padded = padded || sequence.num_valid < 64;
      EXPECT_EQ(micro.valid_rows.defined() ? micro.valid_rows.size(0) : 64, sequence.num_valid);
    }
  }
  EXPECT_TRUE(padded);
}

TEST(BatchPrefetcher, GivesTheSameBatchesInOrder) {
  const RunFolder folder;
  const Recipe recipe = folder.recipe();
  const RunData data = RunData::open(recipe, test::kRunVocab, std::nullopt).value();
  const BatchOptions options = {recipe.micro_batch_tokens, 16, false};
  BatchPrefetcher prefetcher(data, 5, options);
  for (int64_t step = 5; step < 12; ++step) {
    const StepBatch ahead = prefetcher.next().value();
    const StepBatch direct = make_step_batch(data, step, options).value();
    EXPECT_EQ(ahead.step, step);
    ASSERT_EQ(ahead.micro_batches.size(), direct.micro_batches.size());
    for (size_t m = 0; m < direct.micro_batches.size(); ++m) {
      EXPECT_TRUE(ahead.micro_batches[m].tokens.equal(direct.micro_batches[m].tokens));
      EXPECT_TRUE(ahead.micro_batches[m].targets.equal(direct.micro_batches[m].targets));
    }
  }
  const BatchPrefetcher abandoned(data, 0, options);  // ends while it waits for room
}

// Loss, gradients and the routers' new bias of one step, dealt out in four ways. In double precision, so that what is
// left is rounding: of each gradient at most 2 n eps of its norm, n the rows that are added up in another order.
TEST(TrainStep, MicroBatchesDoNotMatter) {
  const RunFolder folder;
  nlohmann::json json = RunFolder::recipe_json();
  json["curriculum"] = {{{"data", "chat"}, {"length", 64}, {"tokens", 256}, {"pack", "documents"}}};
  json["batch_tokens"] = 256;
  folder.write_recipe(json);
  ModelConfig config = test::small_k3();
  config.vocab_size = test::kRunVocab;
  const RunData data = RunData::open(folder.recipe(), config.vocab_size, std::nullopt).value();
  std::vector<at::Tensor> first_gradients;
  StepNumbers first;
  at::Tensor first_bias;
  for (const int64_t micro_batch_tokens : {256, 128, 64, 192}) {
    TrainModel model = TrainModel::random(config, 3, InitStyle::kTraining, at::kDouble);
    Optimizer optimizer(config, model.parameters(), {});
    RouterBalancer balancer(model, BalancingKind::kHistogram);
    ForwardOptions forward;
    forward.compute = at::kDouble;
    TrainStep step(model, optimizer, balancer, forward, at::kCPU, 1e9, /*mtp_loss_weight=*/0);
    const StepBatch batch = make_step_batch(data, 0, {micro_batch_tokens, 16, false}).value();
    const StepNumbers numbers = step.gradients(batch);
    std::vector<at::Tensor> gradients;
    for (const Parameter& p : model.parameters()) {
      if (p.value.grad().defined()) gradients.push_back(p.value.grad());
    }
    step.apply(0.01);
    const at::Tensor bias = model.layer_parameters(1)[TensorRole::kRouterBias];
    if (first_gradients.empty()) {
      EXPECT_EQ(batch.micro_batches.size(), 1u);
      EXPECT_GT(bias.abs().max().item<double>(), 0);
      first_gradients = gradients;
      first = numbers;
      first_bias = bias;
      continue;
    }
    const double rounding = 2 * 256 * std::numeric_limits<double>::epsilon();
    EXPECT_NEAR(numbers.loss, first.loss, rounding * first.loss);
    EXPECT_NEAR(numbers.grad_norm, first.grad_norm, rounding * first.grad_norm);
    EXPECT_EQ(numbers.expert_load, first.expert_load);
    EXPECT_TRUE(bias.equal(first_bias));  // counts of a histogram add up exactly
    ASSERT_EQ(gradients.size(), first_gradients.size());
    for (size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_LE((gradients[i] - first_gradients[i]).abs().max().item<double>(), rounding * first.grad_norm) << i;
    }
  }
}

// The loss that a step reports is that of its tokens, and the sum over the micro-batches says the same.
TEST(TrainStep, LossIsTheMeanOverTrainedTokens) {
  const RunFolder folder;
  ModelConfig config = test::small_k3();
  config.vocab_size = test::kRunVocab;
  const RunData data = RunData::open(folder.recipe(), config.vocab_size, std::nullopt).value();
  TrainModel model = TrainModel::random(config, 3, InitStyle::kTraining, at::kDouble);
  Optimizer optimizer(config, model.parameters(), {});
  RouterBalancer balancer(model, BalancingKind::kNone);
  ForwardOptions forward;
  forward.compute = at::kDouble;
  TrainStep step(model, optimizer, balancer, forward, at::kCPU, 1e9, /*mtp_loss_weight=*/0);
  const StepBatch batch = make_step_batch(data, 2, {64, 16, false}).value();
  double sum = 0;
  for (const MicroBatch& micro : batch.micro_batches) {
    sum += step.loss_sum(micro);
    const at::Tensor logits = model.forward(micro.tokens, micro.layout, forward).log_softmax(1);
    const at::Tensor rows = logits.index_select(0, micro.trained_rows);
    const at::Tensor picked = rows.gather(1, micro.targets.unsqueeze(1));
    EXPECT_NEAR(step.loss_sum(micro), -picked.sum().item<double>(), 1e-12 * 64);
  }
  EXPECT_NEAR(step.gradients(batch).loss, sum / static_cast<double>(batch.num_trained), 1e-13 * 128);
  EXPECT_NEAR(sum / static_cast<double>(batch.num_trained), std::log(40.0), 0.5);
}

}  // namespace
}  // namespace tandem::train

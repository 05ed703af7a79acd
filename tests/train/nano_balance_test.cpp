// Quantile Balancing on the bundled model and its own kind of data: over 64 steps every expert gets its share.
//
//   TANDEM_BALANCE_TOKENS sets the tokens of a step (256): counts of few tokens are noisy, and the bound says by how
//   much.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "corpus/chat_generator.h"
#include "support/golden.h"
#include "text/tokenizer.h"
#include "train/run/router_balancer.h"

namespace tandem::train {
namespace {

constexpr int kWarmupSteps = 8, kSteps = 64;
constexpr double kPromised = 1.05;

struct Batch {
  at::Tensor tokens;
  std::vector<int64_t> cu_seqlens = {0};
};

// Chats of the training split, whole, until there are `num_tokens`.
class ChatBatches {
 public:
  ChatBatches(const Tokenizer& tokenizer, int64_t num_tokens)
      : tokenizer_(tokenizer), chats_(short_gaps(tokenizer)), num_tokens_(num_tokens) {}

  Batch next() {
    Batch batch;
    std::vector<int64_t> ids;
    while (static_cast<int64_t>(ids.size()) < num_tokens_) {
      const ChatExample example = chats_.example(chats_.family_of(index_), ChatSplit::kTrain, index_);
      ++index_;
      const ChatTokens chat = encode_example(tokenizer_, example).value();
      for (const TokenId id : chat.ids) ids.push_back(id.value);
      batch.cu_seqlens.push_back(static_cast<int64_t>(ids.size()));
    }
    batch.tokens = at::tensor(ids, at::kLong);
    return batch;
  }

 private:
  static ChatGeneratorOptions short_gaps(const Tokenizer& tokenizer) {
    ChatGeneratorOptions options;
    options.max_gap_tokens = 128;
    options.tokenizer = &tokenizer;
    return options;
  }

  const Tokenizer& tokenizer_;
  ChatGenerator chats_;
  int64_t num_tokens_;
  uint64_t index_ = 0;
};

TEST(NanoBalance, EveryExpertGetsItsShareOver64Steps) {
  const c10::NoGradGuard no_grad;
  const std::string dir = test::data_path("../../models/nano");
  const ModelConfig config = load_model_config(dir).value();
  const Tokenizer tokenizer = Tokenizer::load(dir, config.vocab_size).value();
  const Checkpoint checkpoint = Checkpoint::open(dir).value();
  TrainModel model = std::move(TrainModel::load(checkpoint, config)).value();
  RouterBalancer balancer(model, BalancingKind::kHistogram);
  const char* wanted = std::getenv("TANDEM_BALANCE_TOKENS");
  ChatBatches batches(tokenizer, wanted != nullptr ? std::atoll(wanted) : 256);

  const int64_t experts = config.num_experts, chosen = config.num_experts_per_token;
  at::Tensor counts = at::zeros({balancer.num_moe_layers(), experts}, at::kLong);
  int64_t tokens = 0;
  for (int step = 0; step < kWarmupSteps + kSteps; ++step) {
    const Batch batch = batches.next();
    const SequenceLayout layout = make_sequence_layout(batch.cu_seqlens, 64, at::kCPU).value();
    std::vector<Routing> routing;
    ForwardOptions options;
    options.routing = &routing;
    model.hidden(batch.tokens, layout, options);
    balancer.begin_step();
    balancer.add(routing, {});
    balancer.update();
    if (step < kWarmupSteps) continue;
    tokens += batch.tokens.size(0);
    int64_t row = 0;
    for (const Routing& layer : routing) {
      if (layer.ids.defined()) counts[row++] += layer.ids.reshape({-1}).bincount({}, experts);
    }
    ASSERT_EQ(row, counts.size(0));
  }
  const at::Tensor load = counts.to(at::kDouble) / counts.to(at::kDouble).mean(1, true);
  const double mean = static_cast<double>(tokens * chosen) / static_cast<double>(experts);
  // The largest of all experts of all layers, each within four deviations of a count of its size.
  const double bound = kPromised + 4.0 / std::sqrt(mean);
  std::printf("nano, %lld tokens in %d steps: largest over mean load %.4f at worst, %.4f as the layers' mean\n",
              static_cast<long long>(tokens), kSteps, load.max().item<double>(), load.amax({1}).mean().item<double>());
  EXPECT_LE(load.max().item<double>(), bound);
}

}  // namespace
}  // namespace tandem::train

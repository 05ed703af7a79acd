// Where the weights lie: mapped, resident, or resident with an int8 trunk. The first two are one model, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/cat.h"
#include "engine/golden_backends.h"
#include "engine/score.h"
#include "support/golden.h"

namespace tandem {
namespace {

LoadOptions options_of(WeightPlacement weights, TrunkFormat trunk = TrunkFormat::kStored,
                       std::optional<KernelBackend> kernels = std::nullopt) {
  LoadOptions options;
  options.weights = weights;
  options.trunk = trunk;
  options.kernels = kernels;
  options.num_threads = 2;
  return options;
}

std::unique_ptr<LoadedModel> load(const std::string& dir, const LoadOptions& options) {
  auto model = LoadedModel::load(dir, options);
  TANDEM_CHECK(model.is_ok(), model.status().message());
  return std::move(model).value();
}

std::vector<float> logits_of(LoadedModel& model, const std::vector<TokenId>& tokens) {
  auto result = score(model, {{"p", tokens}}, {}, [](int64_t, int64_t) {});
  TANDEM_CHECK(result.is_ok(), result.status().message());
  for (ScoreTensor& tensor : result.value().tensors) {
    if (tensor.name.ends_with(".logits")) return std::get<std::vector<float>>(std::move(tensor.values));
  }
  return {};
}

std::vector<TokenId> golden_prompt(const std::string& name) {
  std::vector<TokenId> tokens;
  const auto golden = test::Golden::load(cat("golden/", name, "/expected.safetensors"));
  for (const int32_t id : golden["p37.ids"].i32) tokens.emplace_back(id);
  return tokens;
}

// Mean over the rows of KL(expected ‖ actual).
double mean_kl(const std::vector<float>& expected, const std::vector<float>& actual, size_t vocab) {
  const auto log_sum = [&](const std::vector<float>& rows, size_t begin) {
    double total = 0;
    for (size_t v = 0; v < vocab; ++v) total += std::exp(double{rows[begin + v]});
    return std::log(total);
  };
  double kl = 0;
  for (size_t begin = 0; begin < expected.size(); begin += vocab) {
    const double p_sum = log_sum(expected, begin);
    const double q_sum = log_sum(actual, begin);
    for (size_t v = 0; v < vocab; ++v) {
      const double p = expected[begin + v] - p_sum;
      kl += std::exp(p) * (p - (actual[begin + v] - q_sum));
    }
  }
  return kl * static_cast<double>(vocab) / static_cast<double>(expected.size());
}

TEST(Placement, MappedAndResidentWeightsAreOneModel) {
  for (const std::string name : {"k3-tiny", "kimi-linear-tiny"}) {
    const std::string dir = test::data_path("golden/" + name);
    const auto mapped = load(dir, options_of(WeightPlacement::kMapped));
    const auto resident = load(dir, options_of(WeightPlacement::kResident));
    const auto chosen = load(dir, options_of(WeightPlacement::kAuto));
    EXPECT_EQ(mapped->resident_bytes(), 0u);
    EXPECT_GT(resident->resident_bytes(), 0u);
    EXPECT_EQ(chosen->resident_bytes(), resident->resident_bytes()) << "a small model fits";
    const std::vector<TokenId> prompt = golden_prompt(name);
    const std::vector<float> expected = logits_of(*mapped, prompt);
    EXPECT_EQ(logits_of(*resident, prompt), expected);
    EXPECT_EQ(logits_of(*chosen, prompt), expected);
  }
}

TEST(Placement, AnInt8TrunkNeedsMemoryOfItsOwn) {
  const auto refused =
      LoadedModel::load(test::data_path("golden/k3-tiny"), options_of(WeightPlacement::kMapped, TrunkFormat::kInt8));
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), ::testing::HasSubstr("expected resident weights, not mapped"));
}

// Every backend reads the same codes, so they differ by the order of their sums and the last bits of activations alone,
// far less than int8 from stored.
TEST(Placement, AnInt8TrunkIsOneModelOnEveryBackend) {
  const std::string dir = test::data_path("golden/k3-tiny");
  const std::vector<TokenId> prompt = golden_prompt("k3-tiny");
  const auto stored = load(dir, options_of(WeightPlacement::kResident));
  const auto vocab = static_cast<size_t>(stored->config().vocab_size);
  const auto reference =
      logits_of(*load(dir, options_of(WeightPlacement::kAuto, TrunkFormat::kInt8, KernelBackend::kRef)), prompt);
  const double loss = mean_kl(logits_of(*stored, prompt), reference, vocab);
  EXPECT_GT(loss, 0.0);
  for (const KernelBackend backend : available_backends(detect_cpu_features())) {
    const auto logits = logits_of(*load(dir, options_of(WeightPlacement::kAuto, TrunkFormat::kInt8, backend)), prompt);
    EXPECT_LT(mean_kl(reference, logits, vocab), loss / 100) << kernel_backend_name(backend);
  }
}

// What int8 costs a trained model: hundredths of a nat a token on a short text (measured on twelve documents of 18,626
// tokens: perplexity 63.34 becomes 63.24, 0.0014 nats a token).
TEST(Placement, AnInt8TrunkCostsNanoLittle) {
  const std::string dir = test::data_path("../../models/nano");
  const std::string text =
      "The harbour was quiet in the morning. Two boats came in before eight, and the third one waited outside until "
      "the "
      "wind had turned. Mira wrote the names of the crews into her book, as she did every day, and went home.";
  double nats[2];
  for (const TrunkFormat trunk : {TrunkFormat::kStored, TrunkFormat::kInt8}) {
    const auto model = load(dir, options_of(WeightPlacement::kAuto, trunk));
    const auto tokenizer = model->tokenizer();
    ASSERT_TRUE(tokenizer.is_ok()) << tokenizer.status().message();
    const auto result = score(*model, {{"p", tokenizer.value()->encode_text(text)}}, {}, [](int64_t, int64_t) {});
    ASSERT_TRUE(result.is_ok()) << result.status().message();
    const PromptScore& prompt = result.value().prompts.front();
    ASSERT_GT(prompt.num_scored, 30);
    nats[static_cast<size_t>(trunk)] = prompt.negative_log_likelihood / static_cast<double>(prompt.num_scored);
  }
  EXPECT_NE(nats[0], nats[1]);
  EXPECT_NEAR(nats[0], nats[1], 0.05);
}

}  // namespace
}  // namespace tandem

// The law between the two halves: an exported model in the engine ≡ the trainer's forward pass.
//
//   Trunk in F32: both compute with the same numbers, the trainer's experts rounded by fake quantisation, the engine's
//   decoded from the file. What is left is the order of sums. Trunk in BF16: the trainer loads what was exported.
//   Tolerance: float32 logits of two implementations, tests/data/golden/README.md.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <span>

#include "config/model_config.h"
#include "corpus/chat_generator.h"
#include "engine/generate.h"
#include "engine/score.h"
#include "support/compare.h"
#include "text/tokenizer.h"
#include "train/export_support.h"
#include "train/tensors.h"

namespace tandem::train {
namespace {

using test::Json;
using test::TempFolder;

constexpr float kLogitTolerance = 5e-4f;
constexpr int64_t kLengths[] = {1, 37, 70, 129};  // documents around the chunk of 64

struct Documents {
  std::vector<ScorePrompt> prompts;
  std::vector<int64_t> cu_seqlens = {0};
  at::Tensor tokens;
};

Documents make_documents(const std::vector<std::vector<TokenId>>& texts) {
  Documents documents;
  std::vector<int64_t> all;
  for (const std::vector<TokenId>& text : texts) {
    documents.prompts.push_back({cat("d", documents.prompts.size()), text});
    for (const TokenId token : text) all.push_back(token.value);
    documents.cu_seqlens.push_back(static_cast<int64_t>(all.size()));
  }
  documents.tokens = at::tensor(all, at::kLong);
  return documents;
}

Documents random_documents(int64_t vocab_size, std::span<const int64_t> lengths = kLengths) {
  std::mt19937 generator(11);
  std::uniform_int_distribution<int32_t> id(0, static_cast<int32_t>(vocab_size - 1));
  std::vector<std::vector<TokenId>> texts;
  for (const int64_t length : lengths) {
    for (texts.emplace_back(); texts.back().size() < static_cast<size_t>(length);) {
      texts.back().emplace_back(id(generator));
    }
  }
  return make_documents(texts);
}

std::unique_ptr<LoadedModel> load_engine(const std::string& dir, ExpertAct expert_act = ExpertAct::kF32) {
  LoadOptions options;
  options.model.expert_act = expert_act;
  auto engine = LoadedModel::load(dir, options);
  EXPECT_TRUE(engine.is_ok()) << engine.status().message();
  return std::move(engine).value();
}

// Engine logits of every document, in document order.
at::Tensor engine_logits(LoadedModel& engine, const Documents& documents) {
  auto result = score(engine, documents.prompts, {.batch = true}, [](int64_t, int64_t) {});
  EXPECT_TRUE(result.is_ok()) << result.status().message();
  std::vector<at::Tensor> logits;
  for (const ScorePrompt& prompt : documents.prompts) {
    for (ScoreTensor& tensor : result.value().tensors) {
      if (tensor.name != prompt.id + ".logits") continue;
      logits.push_back(at::tensor(std::get<std::vector<float>>(tensor.values)).reshape(tensor.shape));
    }
  }
  return at::cat(logits);
}

void expect_same_logits(const at::Tensor& engine, const at::Tensor& trainer, const std::string& what) {
  EXPECT_TRUE(test::all_close(test::floats(engine), test::floats(trainer), kLogitTolerance)) << what;
  const at::Tensor agrees = engine.argmax(1).eq(trainer.argmax(1));
  const int64_t rows = agrees.size(0), equal = agrees.sum().item<int64_t>();
  std::printf("%s: max |logit difference| %.2g, top-1 equal on %d of %d positions\n", what.c_str(),
              (engine - trainer).abs().max().item<double>(), static_cast<int>(equal), static_cast<int>(rows));
  EXPECT_GE(static_cast<double>(equal), 0.999 * static_cast<double>(rows));
}

struct Case {
  const char* name;
  Json config;
};
std::vector<Case> cases() {
  return {{"K3, mixed experts", test::odd_k3()},
          {"K3, MXFP4 experts", test::packed_k3()},
          {"Kimi-Linear, MXFP4 experts", test::odd_kimi_linear(true)},
          {"Kimi-Linear, BF16 experts", test::odd_kimi_linear(false)}};
}

// Four packed documents in one training batch against the engine, with QAT on.
TEST(ExportParity, QatForwardIsTheEngineOnTheF32Trunk) {
  const c10::NoGradGuard no_grad;
  for (const Case& c : cases()) {
    const TempFolder scratch;
    const TrainModel model = test::random_model(c.config, 21);
    ExportOptions options = test::export_options(c.config, scratch.path("out"));
    options.format.trunk_f32 = true;
    ASSERT_TRUE(export_model(model, options).is_ok());
    const Documents documents = random_documents(model.config().vocab_size);
    const SequenceLayout layout = make_sequence_layout(documents.cu_seqlens, 64, at::kCPU).value();
    const bool quantised = model.config().declares_mxfp4;
    at::Tensor trainer = model.forward(documents.tokens, layout, {.mxfp4_experts = quantised});
    const auto engine = load_engine(scratch.path("out"));
    expect_same_logits(engine_logits(*engine, documents), trainer, cat(c.name, ", F32 trunk, QAT"));
    if (quantised) {  // without QAT the trainer computes another function: the test sees the rounding
      trainer = model.forward(documents.tokens, layout, {});
      EXPECT_GT((engine_logits(*engine, documents) - trainer).abs().max().item<float>(), 10 * kLogitTolerance);
    }
  }
}

// Share of the rows whose logits are all within the tolerance.
double share_of_equal_rows(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().le(kLogitTolerance + kLogitTolerance * b.abs()).all(1).to(at::kDouble).mean().item<double>();
}

// Weights in MXFP4 and their inputs in MXFP8, in training and in the engine. Where another order of sums, of relative
// size 1e-6, moves an input over the edge between two E4M3 values, which are 2^-4 apart, a row differs, and those after
// it in its document: some 1e-5 of the 2e5 inputs. Documents of four rows keep that to a few rows; all others agree
// like exact ones do. Without the rounding hardly a row does.
TEST(ExportParity, QatForwardWithMxfp8InputsIsTheEngineWithThem) {
  const c10::NoGradGuard no_grad;
  int num_cases = 0;
  for (const Case& c : cases()) {
    const TempFolder scratch;
    const TrainModel model = test::random_model(c.config, 25);
    if (!check_mxfp8_widths(model.config()).is_ok() || !model.config().declares_mxfp4) continue;
    ++num_cases;
    ExportOptions options = test::export_options(c.config, scratch.path("out"));
    options.format.trunk_f32 = true;
    ASSERT_TRUE(export_model(model, options).is_ok());
    const std::vector<int64_t> lengths(60, 4);
    const Documents documents = random_documents(model.config().vocab_size, lengths);
    const SequenceLayout layout = make_sequence_layout(documents.cu_seqlens, 64, at::kCPU).value();
    const at::Tensor engine = engine_logits(*load_engine(scratch.path("out"), ExpertAct::kMxfp8), documents);
    const at::Tensor wide = model.forward(documents.tokens, layout, {.mxfp4_experts = true});
    const at::Tensor trainer =
        model.forward(documents.tokens, layout, {.mxfp4_experts = true, .mxfp8_activations = true});
    const double equal = share_of_equal_rows(engine, trainer);
    std::printf("%s, MXFP8 inputs: %.3f of the rows are equal\n", c.name, equal);
    EXPECT_GE(equal, 0.8);
    EXPECT_LE(share_of_equal_rows(engine, wide), 0.05);
  }
  EXPECT_GE(num_cases, 1);
}

TEST(ExportParity, ReloadedModelIsTheEngineOnTheReleasedTypes) {
  const c10::NoGradGuard no_grad;
  for (const Case& c : cases()) {
    const TempFolder scratch;
    const TrainModel model = test::random_model(c.config, 22);
    ASSERT_TRUE(export_model(model, test::export_options(c.config, scratch.path("out"))).is_ok());
    const Checkpoint checkpoint = Checkpoint::open(scratch.path("out")).value();
    const TrainModel exported = std::move(TrainModel::load(checkpoint, model.config())).value();
    const Documents documents = random_documents(model.config().vocab_size);
    const SequenceLayout layout = make_sequence_layout(documents.cu_seqlens, 64, at::kCPU).value();
    const auto engine = load_engine(scratch.path("out"));
    expect_same_logits(engine_logits(*engine, documents), exported.forward(documents.tokens, layout, {}),
                       cat(c.name, ", reloaded"));
  }
}

// The bundled model on chats of the test split. Two experts may score the same within rounding, and then the two orders
// of sums choose differently: such a position may differ by more, its best token must not.
TEST(ExportParity, NanoIsTheEnginesNano) {
  const c10::NoGradGuard no_grad;
  const std::string dir = test::data_path("../../models/nano");
  const ModelConfig config = load_model_config(dir).value();
  const Tokenizer tokenizer = Tokenizer::load(dir, config.vocab_size).value();
  const ChatGenerator chats({.prose = {}, .tokenizer = &tokenizer});
  std::vector<std::vector<TokenId>> texts;
  for (uint64_t i = 0; i < 5; ++i) {
    texts.push_back(encode_example(tokenizer, chats.example(chats.family_of(i), ChatSplit::kTest, i)).value().ids);
  }
  const Documents documents = make_documents(texts);
  const SequenceLayout layout = make_sequence_layout(documents.cu_seqlens, 64, at::kCPU).value();
  const Checkpoint checkpoint = Checkpoint::open(dir).value();
  const TrainModel trained = std::move(TrainModel::load(checkpoint, config)).value();
  const auto engine = load_engine(dir);
  const at::Tensor trainer = trained.forward(documents.tokens, layout, {});
  const at::Tensor served = engine_logits(*engine, documents);
  const at::Tensor difference = (served - trainer).abs().amax(1);
  const int64_t rows = difference.size(0), equal = served.argmax(1).eq(trainer.argmax(1)).sum().item<int64_t>();
  std::printf("nano: |logit difference| max %.2g, median of positions %.2g, top-1 equal on %d of %d positions\n",
              difference.max().item<double>(), difference.median().item<double>(), static_cast<int>(equal),
              static_cast<int>(rows));
  EXPECT_GE(static_cast<double>(equal), 0.999 * static_cast<double>(rows));
  EXPECT_LE(difference.median().item<float>(), kLogitTolerance);
}

// Greedy decoding by the engine's generator ≡ the trainer's argmax at every step of the same text.
TEST(ExportParity, GeneratorFollowsTheTrainer) {
  const c10::NoGradGuard no_grad;
  const TempFolder scratch;
  const Json config = test::packed_k3();
  const TrainModel model = test::random_model(config, 23);
  ExportOptions options = test::export_options(config, scratch.path("out"));
  options.format.trunk_f32 = true;
  ASSERT_TRUE(export_model(model, options).is_ok());
  const auto engine = load_engine(scratch.path("out"));
  GenerateRequest request;
  request.prompt = random_documents(model.config().vocab_size).prompts[1].tokens;
  request.sampling.temperature = 0;
  request.max_tokens = 24;
  request.ignore_eos = true;
  Generator generator(*engine);
  const Result<GenerateResult> generated = generator.run(request, [](TokenId) { return true; });
  ASSERT_TRUE(generated.is_ok()) << generated.status().message();

  std::vector<int64_t> text;
  for (const TokenId token : request.prompt) text.push_back(token.value);
  const size_t num_prompt = text.size();
  for (const TokenId token : generated.value().tokens) text.push_back(token.value);
  const std::vector<int64_t> bounds = {0, static_cast<int64_t>(text.size())};
  const SequenceLayout layout = make_sequence_layout(bounds, 64, at::kCPU).value();
  const at::Tensor best =
      model.forward(at::tensor(text, at::kLong), layout, {.mxfp4_experts = true}).argmax(1).contiguous();
  for (size_t i = num_prompt; i < text.size(); ++i) EXPECT_EQ(best.data_ptr<int64_t>()[i - 1], text[i]) << i;
}

}  // namespace
}  // namespace tandem::train

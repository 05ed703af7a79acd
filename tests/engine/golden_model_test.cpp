// The two golden models, K3 and Kimi-Linear, against the answers of the released code: every prompt, every backend,
// every way of cutting the work. Tolerances: tests/data/golden/README.md, float32 rows.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "base/cat.h"
#include "engine/generate.h"
#include "engine/golden_backends.h"
#include "engine/score.h"
#include "support/compare.h"
#include "support/effort.h"
#include "support/golden.h"

namespace tandem {
namespace {

using test::Golden;
using test::GoldenTensor;

constexpr float kLogitTolerance = 5e-4f;
constexpr float kLayerTolerance = 1e-4f;  // times the tensor's largest value
constexpr float kRouterWeightTolerance = 1e-5f;

std::unique_ptr<LoadedModel> load(const std::string& name, KernelBackend backend, LoadOptions options = {}) {
  options.kernels = backend;
  options.num_threads = 2;
  auto model = LoadedModel::load(test::data_path("golden/" + name), options);
  EXPECT_TRUE(model.is_ok()) << model.status().message();
  return std::move(model).value();
}

std::vector<TokenId> token_ids(const GoldenTensor& tensor) {
  std::vector<TokenId> ids;
  for (const int32_t id : tensor.i32) ids.emplace_back(id);
  return ids;
}

std::vector<ScorePrompt> golden_prompts(const Golden& golden) {
  std::vector<ScorePrompt> prompts;
  for (const char* id : {"p1", "p37", "p300"}) prompts.push_back({id, token_ids(golden[cat(id, ".ids")])});
  return prompts;
}

using Tensors = std::map<std::string, ScoreTensor>;

Tensors run_score(LoadedModel& model, const Golden& golden, ScoreOptions options) {
  options.hidden = options.state = options.router = true;
  auto result = score(model, golden_prompts(golden), options, [](int64_t, int64_t) {});
  EXPECT_TRUE(result.is_ok()) << result.status().message();
  Tensors tensors;
  for (ScoreTensor& tensor : result.value().tensors) tensors.emplace(tensor.name, std::move(tensor));
  return tensors;
}

const std::vector<float>& f32(const ScoreTensor& tensor) { return std::get<std::vector<float>>(tensor.values); }

// The last `rows` rows of a matrix.
std::span<const float> last_rows(const ScoreTensor& tensor, int64_t rows) {
  const std::vector<float>& values = f32(tensor);
  return std::span(values).last(static_cast<size_t>(rows * tensor.shape[1]));
}

void expect_logits(const Tensors& tensors, const Golden& golden, float tolerance) {
  for (const char* id : {"p1", "p37", "p300"}) {
    const GoldenTensor& expected = golden[cat(id, ".logits")];
    const auto actual = last_rows(tensors.at(cat(id, ".logits")), expected.shape[0]);
    EXPECT_TRUE(test::all_close(actual, expected.f32, tolerance)) << id << ".logits";
  }
}

// Every golden tensor that score writes, by its name; golden conv states have one column more, the oldest.
int expect_tensors(const Tensors& tensors, const Golden& golden) {
  int compared = 0;
  for (const auto& [name, expected] : golden.tensors()) {
    const bool last8 = name.ends_with(".last8");
    const auto found = tensors.find(last8 ? name.substr(0, name.size() - 6) : name);
    if (found == tensors.end() || name.ends_with(".logits") || name.ends_with(".router_idx")) continue;
    SCOPED_TRACE(name);
    ++compared;
    std::vector<float> wanted = expected.f32;
    if (name.find(".conv_") != std::string::npos) {
      const auto width = static_cast<size_t>(expected.shape[1]);
      wanted.clear();
      for (size_t i = 0; i < expected.f32.size(); ++i) {
        if (i % width != 0) wanted.push_back(expected.f32[i]);
      }
    }
    const bool is_weight = name.ends_with(".router_w");
    const float tolerance = is_weight ? kRouterWeightTolerance : kLayerTolerance * test::max_abs(wanted);
    const std::span<const float> actual =
        last8 ? last_rows(found->second, expected.shape[0]) : std::span<const float>(f32(found->second));
    EXPECT_TRUE(test::all_close(actual, wanted, tolerance));
  }
  return compared;
}

void expect_router(const Tensors& tensors, const Golden& golden) {
  for (const auto& [name, expected] : golden.tensors()) {
    if (!name.ends_with(".router_idx")) continue;
    SCOPED_TRACE(name);
    EXPECT_EQ(std::get<std::vector<int32_t>>(tensors.at(name).values), expected.i32);
  }
}

struct Mode {
  const char* name;
  ScoreOptions options;
};

std::vector<Mode> modes() {
  return {{"one chunk", {}},
          {"chunks of 7", {.prefill_chunk = 7}},
          {"chunks of 16", {.prefill_chunk = 16}},
          {"chunks of 61", {.prefill_chunk = 61}},
          {"token by token, prefill mode", {.prefill_chunk = 1}},
          {"decode", {.decode = true}},
          {"batched", {.batch = true}},
          {"batched chunks of 23", {.prefill_chunk = 23, .batch = true}},
          {"batched decode", {.decode = true, .batch = true}}};
}

// Under a sanitizer one mode of each kind; all of them otherwise.
std::vector<Mode> modes_to_run() {
  std::vector<Mode> all = modes();
  if (test::effort(10) == 10) return all;
  return {all[7], all[8]};
}

class GoldenModel : public ::testing::TestWithParam<std::tuple<std::string, KernelBackend>> {
 protected:
  std::string name() const { return std::get<0>(GetParam()); }
  KernelBackend backend() const { return std::get<1>(GetParam()); }
  Golden golden() const { return Golden::load(cat("golden/", name(), "/expected.safetensors")); }
};

TEST_P(GoldenModel, EveryTensorInEveryMode) {
  const auto model = load(name(), backend());
  const Golden expected = golden();
  for (const Mode& mode : modes_to_run()) {
    SCOPED_TRACE(mode.name);
    const Tensors tensors = run_score(*model, expected, mode.options);
    expect_logits(tensors, expected, kLogitTolerance);
    expect_router(tensors, expected);
    // Layers out, states, conv histories, latents and router weights of three prompts.
    EXPECT_GE(expect_tensors(tensors, expected), name() == "k3-tiny" ? 80 : 35);
  }
}

TEST_P(GoldenModel, GreedyContinuations) {
  const auto model = load(name(), backend());
  const Golden expected = golden();
  Generator generator(*model);
  for (const char* id : {"p1", "p37", "p300"}) {
    for (const int64_t chunk : {512, 19}) {
      SCOPED_TRACE(cat(id, ", prefill chunk ", chunk));
      GenerateRequest request;
      request.prompt = token_ids(expected[cat(id, ".ids")]);
      request.sampling.temperature = 0;
      request.max_tokens = 32;
      request.ignore_eos = true;
      request.prefill_chunk = chunk;
      const auto result = generator.run(request, [](TokenId) { return true; });
      ASSERT_TRUE(result.is_ok()) << result.status().message();
      EXPECT_EQ(result.value().tokens, token_ids(expected[cat(id, ".greedy")]));
      EXPECT_EQ(result.value().finish_reason, FinishReason::kLength);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, GoldenModel, test::golden_models_on_every_backend(), test::golden_backend_name);

}  // namespace
}  // namespace tandem

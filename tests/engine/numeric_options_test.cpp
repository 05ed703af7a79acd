// The numeric options of a run: bf16 activations, bf16 caches, MXFP8 expert inputs. On the golden models, against the
// released code's f32 answers, with the bf16 rows of tests/data/golden/README.md as the measure.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "base/cat.h"
#include "cache/sequence_cache.h"
#include "engine/score.h"
#include "kernels/attn_res/attn_res.h"
#include "kernels/norm/norm.h"
#include "model/layers/kda.h"
#include "model/layers/latent_moe.h"
#include "model/layers/mla.h"
#include "model/layers/rows.h"
#include "support/compare.h"
#include "support/golden.h"
#include "tensor/mxfp4.h"

namespace tandem {
namespace {

using test::all_close;
using test::all_equal_bits;
using test::Golden;

std::unique_ptr<LoadedModel> load(const std::string& name, KernelBackend backend, const ModelOptions& options,
                                  DType cache_dtype = DType::kF32) {
  LoadOptions load_options;
  load_options.model = options;
  load_options.cache_dtype = cache_dtype;
  load_options.kernels = backend;
  load_options.num_threads = 2;
  auto model = LoadedModel::load(test::data_path("golden/" + name), load_options);
  TANDEM_CHECK(model.is_ok(), model.status().message());
  return std::move(model).value();
}

struct Run {
  std::vector<float> logits;                  // [T, V]
  std::vector<std::vector<int32_t>> experts;  // by token: the choices of all layers
};
using Runs = std::map<std::string, Run>;  // by prompt

// The reference backend is plain loops; it is given the short prompts only.
std::vector<std::string> prompt_ids(KernelBackend backend) {
  if (backend == KernelBackend::kRef) return {"p1", "p37"};
  return {"p1", "p37", "p300"};
}

Runs run(LoadedModel& model, const Golden& golden, ScoreOptions options) {
  std::vector<ScorePrompt> prompts;
  for (const std::string& id : prompt_ids(model.exec().kernels.backend)) {
    prompts.push_back({id, {}});
    for (const int32_t token : golden[id + ".ids"].i32) prompts.back().tokens.emplace_back(token);
  }
  options.router = true;
  auto result = score(model, prompts, options, [](int64_t, int64_t) {});
  TANDEM_CHECK(result.is_ok(), result.status().message());
  Runs runs;
  for (ScoreTensor& tensor : result.value().tensors) {
    Run& of_prompt = runs[tensor.name.substr(0, tensor.name.find('.'))];
    if (tensor.name.ends_with(".logits")) of_prompt.logits = std::get<std::vector<float>>(std::move(tensor.values));
    if (!tensor.name.ends_with(".router_idx")) continue;
    const auto& ids = std::get<std::vector<int32_t>>(tensor.values);
    of_prompt.experts.resize(static_cast<size_t>(tensor.shape[0]));
    for (size_t i = 0; i < ids.size(); ++i) {
      of_prompt.experts[i / static_cast<size_t>(tensor.shape[1])].push_back(ids[i]);
    }
  }
  return runs;
}

struct Distance {
  double max_abs = 0, mean_abs = 0;
  double kl = 0;  // mean over positions of KL(expected ‖ actual)
};

std::vector<double> log_softmax(std::span<const float> row) {
  const double top = *std::max_element(row.begin(), row.end());
  double total = 0;
  for (const float x : row) total += std::exp(x - top);
  std::vector<double> out;
  for (const float x : row) out.push_back(x - top - std::log(total));
  return out;
}

Distance distance(std::span<const float> actual, std::span<const float> expected, size_t vocab) {
  Distance d;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::fabs(double{actual[i]} - double{expected[i]});
    d.max_abs = std::max(d.max_abs, error);
    d.mean_abs += error / static_cast<double>(expected.size());
  }
  for (size_t at = 0; at < expected.size(); at += vocab) {
    const auto p = log_softmax(expected.subspan(at, vocab)), q = log_softmax(actual.subspan(at, vocab));
    for (size_t v = 0; v < vocab; ++v) d.kl += std::exp(p[v]) * (p[v] - q[v]) * static_cast<double>(vocab);
  }
  d.kl /= static_cast<double>(expected.size());
  return d;
}

// The released code in bf16 against the same goldens, by prompt: mean |error| and KL (README).
struct Bf16Row {
  double mean_abs = 0, kl = 0;
};
const std::map<std::string, std::map<std::string, Bf16Row>> kBf16Rows = {
    {"k3-tiny", {{"p1", {0.034, 8e-4}}, {"p37", {0.19, 0.039}}, {"p300", {0.14, 0.021}}}},
    {"kimi-linear-tiny", {{"p1", {0.021, 3e-4}}, {"p37", {0.077, 0.012}}, {"p300", {0.037, 1e-3}}}}};

class NumericOptions : public ::testing::TestWithParam<std::tuple<std::string, KernelBackend>> {
 protected:
  std::string name() const { return std::get<0>(GetParam()); }
  KernelBackend backend() const { return std::get<1>(GetParam()); }

  Distance from_golden(const Run& actual, const std::string& prompt) const {
    const auto& expected = golden_[prompt + ".logits"];
    const std::span<const float> last = std::span(actual.logits).last(expected.f32.size());
    return distance(last, expected.f32, static_cast<size_t>(expected.shape[1]));
  }

  // Not farther from the golden than `factor` times the released code's own bf16 run. KL grows with the square of the
  // logits' error, so its bound does. From `shows_from` tokens on the result is not that of an f32 run.
  void expect_like_bf16(const Runs& runs, double factor, size_t shows_from) {
    for (const auto& [prompt, actual] : runs) {
      SCOPED_TRACE(prompt);
      const Distance d = from_golden(actual, prompt);
      const Bf16Row& row = kBf16Rows.at(name()).at(prompt);
      RecordProperty(prompt + "_mean_abs", std::to_string(d.mean_abs));
      RecordProperty(prompt + "_kl", std::to_string(d.kl));
      EXPECT_LE(d.mean_abs, factor * row.mean_abs);
      EXPECT_LE(d.kl, factor * factor * row.kl);
      if (actual.experts.size() < shows_from) continue;
      EXPECT_GT(d.max_abs, 2e-3) << "four times the f32 tolerance: rounding to bf16 must show";
    }
  }

  static void expect_same_bits(const Runs& actual, const Runs& expected, const char* what) {
    for (const auto& [prompt, run] : expected) {
      EXPECT_TRUE(all_equal_bits(actual.at(prompt).logits, run.logits)) << prompt << " " << what;
    }
  }

  Golden golden_ = Golden::load(cat("golden/", std::get<0>(GetParam()), "/expected.safetensors"));
};

// Three times the released code's own distance: which near-ties of the router flip is chance, and one flip moves a
// mean that much. The strict test of bf16 is layer by layer, below.
TEST_P(NumericOptions, Bf16Activations) {
  const auto model = load(name(), backend(), {.activation_dtype = DType::kBF16});
  const Runs alone = run(*model, golden_, {});
  expect_like_bf16(alone, 3.0, 1);
  expect_same_bits(run(*model, golden_, {.batch = true}), alone, "in a batch");
  expect_same_bits(run(*model, golden_, {.prefill_chunk = 16, .batch = true}), alone, "in chunks on the KDA grid");
  expect_like_bf16(run(*model, golden_, {.decode = true}), 3.0, 1);
}

// A cache that is written once and never read back changes nothing: rounding shows from the second step on.
TEST_P(NumericOptions, Bf16Cache) {
  const auto model = load(name(), backend(), {}, DType::kBF16);
  for (ScoreOptions options : {ScoreOptions{.decode = true}, ScoreOptions{.prefill_chunk = 7}}) {
    const Runs alone = run(*model, golden_, options);
    expect_like_bf16(alone, 1.0, 8);
    options.batch = true;
    expect_same_bits(run(*model, golden_, options), alone, "in a batch");
  }
}

// One layer at a time in bf16, each from golden inputs, so that no rounding of an earlier layer is carried on: the
// stricter test that the README recommends. Prompt p37; golden sublayer outputs exist for its last 8 rows.
class SingleLayers {
 public:
  static constexpr int64_t kTokens = 37, kLast = 8;

  SingleLayers(LoadedModel& model, const Golden& golden)
      : model_(model), golden_(golden), cache_(model.cache_layout()) {
    for (const int32_t token : golden["p37.ids"].i32) plan_.tokens.emplace_back(token);
    plan_.sequences = {{.cache = 0, .num_tokens = kTokens, .captures = {}}};
  }

  // Attention of layer l on the whole prompt; the input is rebuilt from the golden running sums.
  void check_attention(int64_t l) {
    const LayerWeights& layer = model_.weights().layers[static_cast<size_t>(l)];
    cache_.reset();
    TANDEM_CHECK(cache_.reserve(kTokens).is_ok(), "reserve");
    const std::array<SequenceCacheView, 1> views = {cache_.view()};
    const StepContext step = context(plan_, views, nullptr);
    const auto h = attention_input(step, l, layer.self_attention_res);
    const MatrixView<float> x = normed(step, h, layer.input_layernorm);
    const MatrixView<float> y = alloc_rows(step, kTokens, width());
    const auto* kda = std::get_if<KdaLayerWeights>(&layer.attention);
    const Status status = kda != nullptr ? kda_layer(step, l, *kda, x, y)
                                         : mla_layer(step, l, std::get<MlaLayerWeights>(layer.attention), x, y);
    ASSERT_TRUE(status.is_ok()) << status.message();
    expect_rows(last(h), expected(l, "attn_in"), "attn_in");
    expect_rows(last(y), expected(l, "attn_out"), "attn_out");
  }

  // MLP or MoE of layer l on the last 8 rows of its golden input. Returns how many tokens chose other experts.
  int64_t check_feed_forward(int64_t l) {
    const LayerWeights& layer = model_.weights().layers[static_cast<size_t>(l)];
    StepPlan plan;
    plan.tokens.assign(plan_.tokens.end() - kLast, plan_.tokens.end());
    RouterSets chosen;
    const StepContext step = context(plan, {}, &chosen);
    const MatrixView<float> h = alloc_rows(step, kLast, width());
    std::copy_n(expected(l, "mlp_in").begin(), kLast * width(), h.data);
    EXPECT_TRUE(round_activations(step, h).is_ok());
    const MatrixView<float> x = normed(step, h, layer.post_attention_layernorm);
    const MatrixView<float> y = alloc_rows(step, kLast, width());
    const auto* mlp = std::get_if<MlpWeights>(&layer.feed_forward);
    const Status status = mlp != nullptr ? dense_mlp(step, *mlp, x, y)
                                         : moe_layer(step, l, std::get<MoeLayerWeights>(layer.feed_forward), x, y);
    EXPECT_TRUE(status.is_ok()) << status.message();
    if (mlp != nullptr) {
      expect_rows(last(y), expected(l, "mlp_out"), "mlp_out");
      return 0;
    }
    return expect_routed_rows(l, chosen.ids, y);
  }

 private:
  struct RouterSets : StepObserver {
    std::vector<std::vector<int32_t>> ids;  // by row, ascending
    void on_router(int64_t, const MatrixView<const int32_t>& topk, const MatrixView<const float>&) override {
      for (int64_t i = 0; i < topk.shape[0]; ++i) {
        ids.emplace_back(topk.row(i), topk.row(i) + topk.shape[1]);
        std::sort(ids.back().begin(), ids.back().end());
      }
    }
  };

  int64_t width() const { return model_.config().hidden_size; }
  const std::vector<float>& expected(int64_t l, const char* what) const {
    return golden_[cat("p37.layer.", l, ".", what, ".last8")].f32;
  }
  std::span<const float> last(const MatrixView<float>& rows) const {
    return std::span(rows.data, static_cast<size_t>(rows.shape[0] * width()))
        .last(static_cast<size_t>(kLast * width()));
  }

  StepContext context(const StepPlan& plan, std::span<const SequenceCacheView> caches, StepObserver* observer) const {
    model_.exec().arena.reset();
    return {.exec = model_.exec(),
            .config = model_.config(),
            .options = options_,
            .plan = plan,
            .caches = caches,
            .observer = observer};
  }

  // The running sum after layer l of the golden run, −1: the embedding; rounded as a bf16 run holds it.
  MatrixView<float> sum_after(const StepContext& step, int64_t l) const {
    const MatrixView<float> rows = alloc_rows(step, kTokens, width());
    if (l >= 0) {
      std::copy_n(golden_[cat("p37.layer.", l, ".out")].f32.begin(), kTokens * width(), rows.data);
    } else {
      for (int64_t i = 0; i < kTokens; ++i) {
        weight_row_to_f32(model_.weights().embed_tokens, plan_.tokens[static_cast<size_t>(i)].value,
                          {rows.row(i), static_cast<size_t>(width())});
      }
    }
    EXPECT_TRUE(round_activations(step, rows).is_ok());
    return rows;
  }

  MatrixView<float> attention_input(const StepContext& step, int64_t l, const AttnResScoreWeight& weight) const {
    if (l == 0 || step.config.attn_res_mode == AttnResMode::kNone) return sum_after(step, l - 1);
    std::vector<MatrixView<const float>> sources;
    for (int64_t first = 0; first < l; first += step.config.attn_res_block_size) {
      sources.push_back(sum_after(step, first - 1));
    }
    sources.push_back(sum_after(step, l - 1));
    const MatrixView<float> out = alloc_rows(step, kTokens, width());
    const auto eps = static_cast<float>(step.config.rms_norm_eps);
    EXPECT_TRUE(attn_res_mix(step.exec, {.sources = sources, .score_weight = as_vector(weight), .eps = eps, .out = out})
                    .is_ok());
    EXPECT_TRUE(round_activations(step, out).is_ok());
    return out;
  }

  MatrixView<float> normed(const StepContext& step, const MatrixView<float>& h,
                           const std::vector<float>& weight) const {
    const MatrixView<float> out = alloc_rows(step, h.shape[0], width());
    const auto eps = static_cast<float>(step.config.rms_norm_eps);
    EXPECT_TRUE(rms_norm(step.exec, {.x = h, .weight = as_vector(weight), .eps = eps, .out = out}).is_ok());
    EXPECT_TRUE(round_activations(step, out).is_ok());
    return out;
  }

  // Within 2e-2 of the tensor's largest value (README), and rounded at all.
  void expect_rows(std::span<const float> actual, std::span<const float> wanted, const char* what) const {
    const float largest = test::max_abs(wanted);
    EXPECT_TRUE(all_close(actual, wanted, 2e-2f * largest)) << what;
  }

  // Tokens with the golden choice of experts are held to expect_rows(); others must have had a near tie.
  int64_t expect_routed_rows(int64_t l, const std::vector<std::vector<int32_t>>& chosen, const MatrixView<float>& y) {
    constexpr float kNearTie = 5e-3f;  // scores move by about 2^-9 when their inputs are rounded to bf16
    const auto& golden_ids = golden_[cat("p37.layer.", l, ".router_idx")];
    const auto& gaps = golden_["p37.router_gap_min"].f32;
    const auto k = golden_ids.shape[1];
    std::vector<float> actual, wanted;
    int64_t flipped = 0;
    for (int64_t i = 0; i < kLast; ++i) {
      const int32_t* ids = golden_ids.i32.data() + (kTokens - kLast + i) * k;
      if (!std::equal(ids, ids + k, chosen[static_cast<size_t>(i)].begin())) {
        EXPECT_LT(gaps[static_cast<size_t>(kTokens - kLast + i)], kNearTie) << "row " << i << " chose other experts";
        ++flipped;
        continue;
      }
      actual.insert(actual.end(), y.row(i), y.row(i) + width());
      const float* row = expected(l, "mlp_out").data() + i * width();
      wanted.insert(wanted.end(), row, row + width());
    }
    expect_rows(actual, wanted, "mlp_out");
    return flipped;
  }

  LoadedModel& model_;
  const Golden& golden_;
  const ModelOptions options_ = {.activation_dtype = DType::kBF16};
  SequenceCache cache_;
  StepPlan plan_;
};

TEST_P(NumericOptions, Bf16LayerByLayerFromGoldenInputs) {
  const auto model = load(name(), backend(), {.activation_dtype = DType::kBF16});
  SingleLayers layers(*model, golden_);
  int64_t flipped = 0;
  for (int64_t l = 0; l < model->config().num_hidden_layers; ++l) {
    SCOPED_TRACE(cat("layer ", l));
    layers.check_attention(l);
    flipped += layers.check_feed_forward(l);
  }
  RecordProperty("flipped", std::to_string(flipped));
  EXPECT_LE(flipped, model->config().num_hidden_layers * SingleLayers::kLast / 20) << "near ties are rare";
}

// Rounding to 4 significant bits moves some tokens to other experts and with them everything that follows; the bound is
// on the tokens whose choices all stayed.
TEST_P(NumericOptions, Mxfp8ExpertInputs) {
  const auto exact = load(name(), backend(), {});
  const auto rounded = load(name(), backend(), {.expert_act = ExpertAct::kMxfp8});
  const Runs before = run(*exact, golden_, {}), after = run(*rounded, golden_, {});
  expect_same_bits(run(*rounded, golden_, {.batch = true}), after, "in a batch");
  const auto vocab = static_cast<size_t>(exact->config().vocab_size);
  for (const auto& [prompt, exact_run] : before) {
    SCOPED_TRACE(prompt);
    const Run& rounded_run = after.at(prompt);
    std::vector<float> kept_before, kept_after;
    for (size_t t = 0; t < exact_run.experts.size(); ++t) {
      if (exact_run.experts[t] != rounded_run.experts[t]) continue;
      const auto row = [&](const Run& r) { return std::span(r.logits).subspan(t * vocab, vocab); };
      kept_before.insert(kept_before.end(), row(exact_run).begin(), row(exact_run).end());
      kept_after.insert(kept_after.end(), row(rounded_run).begin(), row(rounded_run).end());
    }
    const Distance all = distance(rounded_run.logits, exact_run.logits, vocab);
    const Distance kept = distance(kept_after, kept_before, vocab);
    RecordProperty(prompt + "_kl", std::to_string(all.kl));
    RecordProperty(prompt + "_kept_kl", std::to_string(kept.kl));
    RecordProperty(prompt + "_kept", std::to_string(kept_after.size() / vocab));
    EXPECT_GT(all.mean_abs, 1e-3) << "the rounding must show";
    EXPECT_LT(kept.kl, 0.05);
  }
}

// Two f32 backends differ in the last bits; where that crosses a boundary of E4M3 one input moves by up to 1/8.
TEST_P(NumericOptions, Mxfp8BackendsAgree) {
  const auto vector = load(name(), backend(), {.expert_act = ExpertAct::kMxfp8});
  const auto reference = load(name(), KernelBackend::kRef, {.expert_act = ExpertAct::kMxfp8});
  const Runs actual = run(*vector, golden_, {});
  for (const auto& [prompt, expected] : run(*reference, golden_, {})) {
    const auto vocab = static_cast<size_t>(vector->config().vocab_size);
    const Distance d = distance(actual.at(prompt).logits, expected.logits, vocab);
    RecordProperty(prompt + "_mean_abs", std::to_string(d.mean_abs));
    EXPECT_LE(d.mean_abs, 2e-2) << prompt;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, NumericOptions,
                         ::testing::Combine(::testing::Values("k3-tiny", "kimi-linear-tiny"),
                                            ::testing::ValuesIn(available_backends(detect_cpu_features()))),
                         [](const auto& test) {
                           std::string name =
                               cat(std::get<0>(test.param), "_", kernel_backend_name(std::get<1>(test.param)));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tandem

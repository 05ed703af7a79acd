// The bookkeeping of attention residuals at full depth: which sources every mix reads, where the running sum restarts,
// and whose weights weigh them. Recomputed in double from the sublayer outputs (the taps) and from the file's tensors
// (read by the tests' own reader), by the plainest list that model.md §3.3 allows; compared with what each sublayer was
// given. 93 layers in blocks of 12 are K3's own depth: the last block starts at layer 84 and is never stored.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "base/cat.h"
#include "model/random_model.h"
#include "support/golden.h"

namespace tandem {
namespace {

using test::all_close;
using test::all_equal_bits;
using test::BackendFixture;
using test::for_each_backend;
using test::Golden;
using test::max_abs;
using test::random_tokens;
using test::RandomModel;
using test::SmallShape;
using test::tolerance_f32;

using Rows = std::vector<double>;  // [tokens, hidden]

// Every tap of one step.
class Recorder : public StepObserver {
 public:
  void on_tensor(Tap tap, int64_t layer, const MatrixView<const float>& rows) override {
    std::vector<float>& out = taps_[{tap, layer}];
    EXPECT_TRUE(out.empty()) << "a tap fired twice in layer " << layer;
    for (int64_t i = 0; i < rows.shape[0]; ++i) out.insert(out.end(), rows.row(i), rows.row(i) + rows.shape[1]);
  }
  const std::vector<float>& at(Tap tap, int64_t layer) const { return taps_.at({tap, layer}); }

 private:
  std::map<std::pair<Tap, int64_t>, std::vector<float>> taps_;
};

Rows widened(const std::vector<float>& values) { return Rows(values.begin(), values.end()); }

Rows sum(const Rows& a, const Rows& b) {
  Rows out = a;
  for (size_t i = 0; i < out.size(); ++i) out[i] += b[i];
  return out;
}

struct Mix {
  std::vector<float> out;
  double largest_score = 0;
  double largest_source = 0;
};

Mix mix(const std::vector<Rows>& sources, const std::vector<double>& weight, double eps) {
  const size_t D = weight.size();
  const size_t tokens = sources[0].size() / D;
  Mix result;
  for (size_t t = 0; t < tokens; ++t) {
    std::vector<double> scores;
    for (const Rows& source : sources) {
      double squares = 0, dot = 0;
      for (size_t d = 0; d < D; ++d) {
        const double x = source[t * D + d];
        squares += x * x;
        dot += x * weight[d];
        result.largest_source = std::fmax(result.largest_source, std::fabs(x));
      }
      scores.push_back(dot / std::sqrt(squares / static_cast<double>(D) + eps));
      result.largest_score = std::fmax(result.largest_score, std::fabs(scores.back()));
    }
    const double top = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (double& score : scores) total += score = std::exp(score - top);
    for (size_t d = 0; d < D; ++d) {
      double value = 0;
      for (size_t i = 0; i < sources.size(); ++i) value += scores[i] / total * sources[i][t * D + d];
      result.out.push_back(static_cast<float>(value));
    }
  }
  return result;
}

// The reference: lists of sources, one mix after the other, each compared with a tap.
class Depth {
 public:
  Depth(const RandomModel& model, const Recorder& taps)
      : model_(model), taps_(taps), file_(Golden::load_path(model.dir() + "/model-00001-of-00001.safetensors")) {}

  // norm ⊙ pseudo-query of a layer's mix, or of the output's.
  std::vector<double> weight(const std::string& name) const {
    const std::string root = "language_model.model.";
    const std::vector<float>& norm = file_[cat(root, name, "_norm.weight")].f32;
    const std::vector<float>& query = file_[cat(root, name, "_proj.weight")].f32;
    std::vector<double> fold;
    for (size_t d = 0; d < norm.size(); ++d) fold.push_back(double{norm[d]} * double{query[d]});
    return fold;
  }

  // What the sublayer got is this mix, within the rounding of f32; and the mix of another layer's weights is not.
  void expect(Tap tap, int64_t layer, const std::vector<Rows>& sources, const std::string& name,
              const std::string& other, int64_t summed) const {
    SCOPED_TRACE(cat("layer ", layer, ", ", name, ", ", sources.size(), " sources"));
    const Mix wanted = mix(sources, weight(name), model_.config().rms_norm_eps);
    const int64_t reduced = model_.config().hidden_size + static_cast<int64_t>(sources.size()) + summed;
    const float tolerance =
        tolerance_f32(reduced, static_cast<float>(wanted.largest_source * (1 + wanted.largest_score)));
    EXPECT_TRUE(all_close(taps_.at(tap, layer), wanted.out, tolerance));
    if (sources.size() == 1) return;
    const Mix wrong = mix(sources, weight(other), model_.config().rms_norm_eps);
    EXPECT_FALSE(all_close(taps_.at(tap, layer), wrong.out, 10 * tolerance)) << "blind to " << other;
  }

  void check_block(int64_t block) const {
    const int64_t L = model_.config().num_hidden_layers;
    std::vector<Rows> stored;
    Rows p = widened(taps_.at(Tap::kAttnIn, 0));
    EXPECT_EQ(embedding_rows(), taps_.at(Tap::kAttnIn, 0)) << "layer 0 reads the embedding itself";
    for (int64_t l = 0; l < L; ++l) {
      const std::string here = cat("layers.", l, "."), other = cat("layers.", (l + 1) % L, ".");
      if (l > 0) {
        EXPECT_EQ(static_cast<int64_t>(stored.size()), (l + block - 1) / block);
        expect(Tap::kAttnIn, l, with(stored, p), here + "self_attention_res", other + "self_attention_res", 2 * block);
      }
      const Rows y = widened(taps_.at(Tap::kAttnOut, l));
      if (l % block == 0) {
        stored.push_back(p);
        p = y;
      } else {
        p = sum(p, y);
      }
      EXPECT_EQ(static_cast<int64_t>(stored.size()), l / block + 1);
      expect(Tap::kMlpIn, l, with(stored, p), here + "mlp_res", here + "self_attention_res", 2 * block);
      p = sum(p, widened(taps_.at(Tap::kMlpOut, l)));
      const std::vector<float> after(p.begin(), p.end());
      EXPECT_TRUE(all_close(taps_.at(Tap::kLayerOut, l), after, tolerance_f32(2 * block, max_abs(after))))
          << "running sum after layer " << l;
    }
    EXPECT_EQ(static_cast<int64_t>(stored.size()), (L + block - 1) / block);
    expect(Tap::kFinalIn, L, with(stored, p), "output_attn_res", "layers.0.mlp_res", 2 * block);
  }

  void check_full() const {
    const int64_t L = model_.config().num_hidden_layers;
    const std::vector<float>& embedded = taps_.at(Tap::kAttnIn, 0);
    EXPECT_EQ(embedding_rows(), embedded) << "one source mixes to itself";
    std::vector<Rows> sources = {widened(embedded)};
    for (int64_t l = 0; l < L; ++l) {
      const std::string here = cat("layers.", l, "."), other = cat("layers.", (l + 1) % L, ".");
      EXPECT_EQ(static_cast<int64_t>(sources.size()), 2 * l + 1);
      expect(Tap::kAttnIn, l, sources, here + "self_attention_res", other + "self_attention_res", 0);
      sources.push_back(widened(taps_.at(Tap::kAttnOut, l)));
      expect(Tap::kMlpIn, l, sources, here + "mlp_res", here + "self_attention_res", 0);
      sources.push_back(widened(taps_.at(Tap::kMlpOut, l)));
      EXPECT_TRUE(all_equal_bits(taps_.at(Tap::kLayerOut, l), taps_.at(Tap::kMlpOut, l)));
    }
    EXPECT_EQ(static_cast<int64_t>(sources.size()), 2 * L + 1);
    expect(Tap::kFinalIn, L, sources, "output_attn_res", "layers.0.mlp_res", 0);
  }

  std::vector<TokenId> tokens;

 private:
  static std::vector<Rows> with(std::vector<Rows> stored, const Rows& p) {
    stored.push_back(p);
    return stored;
  }

  std::vector<float> embedding_rows() const {
    const std::vector<float>& table = file_["language_model.model.embed_tokens.weight"].f32;
    const int64_t D = model_.config().hidden_size;
    std::vector<float> rows;
    for (const TokenId token : tokens) {
      const auto begin = table.begin() + token.value * D;
      rows.insert(rows.end(), begin, begin + D);
    }
    return rows;
  }

  const RandomModel& model_;
  const Recorder& taps_;
  Golden file_;
};

// Every fourth layer and the last are MLA, as in K3; everything as narrow as it gets.
SmallShape deep_shape(int64_t layers, int64_t block, int64_t experts) {
  SmallShape shape;
  shape.layers = layers;
  shape.block = block;
  shape.mla_layers.clear();
  for (int64_t l = 0; l < layers; ++l) {
    if (l % 4 == 3 || l == layers - 1) shape.mla_layers.push_back(l);
  }
  shape.hidden = 16;
  shape.vocab = 32;
  shape.kda_heads = shape.mla_heads = 1;
  shape.kda_head_dim = 8;
  shape.q_lora = 0;
  shape.rank = 8;
  shape.nope = shape.v = 8;
  shape.rope = 4;
  shape.experts = experts;
  shape.topk = 2;
  shape.latent = 32;
  return shape;
}

// A prefill of four tokens and then one decode step, both observed.
void check_depth(const SmallShape& shape, uint64_t seed) {
  const RandomModel model(shape, seed);
  const auto tokens = random_tokens(5, shape.vocab, seed);
  for_each_backend([&](BackendFixture& backend) {
    SequenceCache cache = model.new_cache();
    ASSERT_TRUE(cache.reserve(5).is_ok());
    for (const bool decode : {false, true}) {
      SCOPED_TRACE(decode ? "decode" : "prefill");
      StepPlan plan;
      plan.tokens.assign(tokens.begin() + (decode ? 4 : 0), tokens.begin() + (decode ? 5 : 4));
      plan.sequences = {{.cache = 0,
                         .num_tokens = decode ? 1 : 4,
                         .num_computed_tokens = decode ? 4 : 0,
                         .mode = decode ? StepMode::kDecode : StepMode::kPrefill,
                         .captures = {}}};
      Recorder taps;
      const std::array<SequenceCacheView, 1> views = {cache.view()};
      const auto logits = model.model().forward(backend.ctx(), plan, views, &taps);
      ASSERT_TRUE(logits.is_ok()) << logits.status().message();
      Depth depth(model, taps);
      depth.tokens = plan.tokens;
      if (shape.full_attn_res) {
        depth.check_full();
      } else {
        depth.check_block(shape.block);
      }
    }
  });
}

struct DepthCase {
  int64_t layers = 0, block = 0, experts = 0;
};

TEST(AttnResDepth, BlocksOfEveryDepth) {
  for (const DepthCase& c : {DepthCase{93, 12, 0}, DepthCase{96, 12, 0}, DepthCase{24, 12, 0}, DepthCase{25, 12, 4},
                             DepthCase{9, 3, 4}, DepthCase{10, 1, 4}, DepthCase{5, 7, 4}}) {
    SCOPED_TRACE(cat(c.layers, " layers, block ", c.block));
    check_depth(deep_shape(c.layers, c.block, c.experts), static_cast<uint64_t>(c.layers));
  }
}

TEST(AttnResDepth, FullModeOverEverySublayer) {
  for (const DepthCase& c : {DepthCase{93, 12, 0}, DepthCase{10, 1, 4}, DepthCase{5, 0, 4}, DepthCase{1, 0, 0}}) {
    SCOPED_TRACE(cat(c.layers, " layers, full"));
    SmallShape shape = deep_shape(c.layers, c.block, c.experts);
    shape.full_attn_res = true;
    check_depth(shape, static_cast<uint64_t>(c.layers) + 100);
  }
}

}  // namespace
}  // namespace tandem

#include "weights/init_values.h"

#include <algorithm>
#include <cmath>

namespace tandem {
namespace {

constexpr float kLogitSpread = 2.f;

ValueRule normal(float center, float spread) { return {ValueKind::kNormal, center, spread, -1}; }
ValueRule uniform(float low, float high) { return {ValueKind::kUniform, (low + high) / 2.f, (high - low) / 2.f, -1}; }

// Elements of a row: what one output element sums over.
float fan_in_scale(const ExpectedTensor& tensor) {
  int64_t fan_in = 1;
  for (size_t axis = 1; axis < tensor.shape.size(); ++axis) fan_in *= tensor.shape[axis];
  return 1.f / std::sqrt(static_cast<float>(std::max<int64_t>(fan_in, 1)));
}

ValueRule unrun_rule(const ExpectedTensor& tensor) {
  if (tensor.name.ends_with("A_log")) return uniform(-1.f, 1.5f);
  if (tensor.name.ends_with("pos_emb.weight")) return normal(0.f, 0.5f);
  if (tensor.name.ends_with("e_score_correction_bias")) return normal(0.f, 0.05f);
  if (tensor.shape.size() == 1) return normal(1.f, 0.1f);  // norms
  return normal(0.f, fan_in_scale(tensor));
}

}  // namespace

ValueRule init_rule(const ModelConfig& config, const ExpectedTensor& tensor) {
  switch (tensor.role) {
    case TensorRole::kEmbedTokens:
      // A tied head reads the embedding too: then the logits decide its scale, and the first norm hides it.
      return normal(0.f, config.tie_word_embeddings ? kLogitSpread * fan_in_scale(tensor) : 1.f);
    case TensorRole::kLmHead: return normal(0.f, kLogitSpread * fan_in_scale(tensor));
    case TensorRole::kKdaALog: {
      ValueRule rule = uniform(-1.f, 1.5f);
      rule.num_valid = config.kda_num_heads;  // the padding is zero
      return rule;
    }
    // A channel's decay is set by its bias, moved by the token: from the bound (or a decay of e^-9) to almost 1.
    case TensorRole::kKdaDtBias: return uniform(-4.f, 2.f);
    case TensorRole::kKdaFBProj: return normal(0.f, 0.7f * fan_in_scale(tensor));
    case TensorRole::kKdaBProj: return normal(0.f, 1.5f * fan_in_scale(tensor));  // beta over most of (0, 1)
    case TensorRole::kRouter: return normal(0.f, 1.5f * fan_in_scale(tensor));
    case TensorRole::kRouterBias: return normal(0.f, 0.05f);
    case TensorRole::kNotRun: return unrun_rule(tensor);
    default: return tensor.shape.size() == 1 ? normal(1.f, 0.1f) : normal(0.f, fan_in_scale(tensor));
  }
}

}  // namespace tandem

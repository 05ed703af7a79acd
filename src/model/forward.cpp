#include "model/forward.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/elementwise/elementwise.h"
#include "kernels/linear/linear.h"
#include "kernels/norm/norm.h"
#include "model/layers/attn_res.h"
#include "model/layers/kda.h"
#include "model/layers/latent_moe.h"
#include "model/layers/mla.h"
#include "model/layers/rows.h"
#include "model/layers/streamed_experts.h"
#include "model/plan_check.h"

namespace tandem {
namespace {

Result<MatrixView<float>> embed(const StepContext& step, const WeightView& table) {
  const PhaseTimer timer(step.times, Phase::kEmbedding);
  const MatrixView<float> rows = alloc_rows(step, num_rows(step), step.config.hidden_size);
  TANDEM_RETURN_IF_ERROR(embedding(step.exec, {.table = table, .tokens = step.plan.tokens, .out = rows}));
  TANDEM_RETURN_IF_ERROR(round_activations(step, rows));
  return rows;
}

Result<MatrixView<float>> norm_rows(const StepContext& step, const MatrixView<const float>& x,
                                    const std::vector<float>& weight) {
  const PhaseTimer timer(step.times, Phase::kNorm);
  const MatrixView<float> out = alloc_rows(step, x.shape[0], x.shape[1]);
  TANDEM_RETURN_IF_ERROR(
      rms_norm(step.exec,
               {.x = x, .weight = as_vector(weight), .eps = static_cast<float>(step.config.rms_norm_eps), .out = out}));
  TANDEM_RETURN_IF_ERROR(round_activations(step, out));
  return out;
}

Status attention(const StepContext& step, int64_t l, const LayerWeights& layer, const MatrixView<const float>& h,
                 const MatrixView<float>& y) {
  const ArenaScope scratch(step.exec.arena);
  const Result<MatrixView<float>> x = norm_rows(step, h, layer.input_layernorm);
  if (!x.is_ok()) return x.status();
  if (const auto* kda = std::get_if<KdaLayerWeights>(&layer.attention)) return kda_layer(step, l, *kda, x.value(), y);
  return mla_layer(step, l, std::get<MlaLayerWeights>(layer.attention), x.value(), y);
}

// `l` within `layers`, whose router of the next layer with experts tells a source what it will be asked for.
Status feed_forward(const StepContext& step, int64_t l, std::span<const LayerWeights> layers,
                    const MatrixView<const float>& h, const MatrixView<float>& y) {
  const LayerWeights& layer = layers[static_cast<size_t>(l)];
  const ArenaScope scratch(step.exec.arena);
  const Result<MatrixView<float>> x = norm_rows(step, h, layer.post_attention_layernorm);
  if (!x.is_ok()) return x.status();
  if (const auto* mlp = std::get_if<MlpWeights>(&layer.feed_forward)) return dense_mlp(step, *mlp, x.value(), y);
  return moe_layer(step, l, std::get<MoeLayerWeights>(layer.feed_forward), x.value(), y,
                   look_ahead(step, l, layers, h));
}

int64_t wanted_rows(const SequenceStep& sequence) {
  switch (sequence.logits) {
    case LogitsWanted::kNone: return 0;
    case LogitsWanted::kLast: return 1;
    case LogitsWanted::kAll: return sequence.num_tokens;
  }
  return 0;
}

// The rows whose logits the plan wants, one after the other.
MatrixView<float> gather_wanted_rows(const StepContext& step, const MatrixView<const float>& h) {
  const PhaseTimer timer(step.times, Phase::kHead);
  int64_t count = 0;
  for (const SequenceStep& sequence : step.plan.sequences) count += wanted_rows(sequence);
  const MatrixView<float> rows = alloc_rows(step, count, h.shape[1]);
  int64_t row_end = 0, next = 0;
  for (const SequenceStep& sequence : step.plan.sequences) {
    row_end += sequence.num_tokens;
    for (int64_t i = row_end - wanted_rows(sequence); i < row_end; ++i) {
      std::memcpy(rows.row(next++), h.row(i), static_cast<size_t>(h.shape[1]) * sizeof(float));
    }
  }
  return rows;
}

}  // namespace

Model::Model(const ModelConfig& config, const ModelWeights& weights, ModelOptions options, ExpertSource* experts,
             LayerSource* layers)
    : config_(config), weights_(weights), options_(options), experts_(experts), layers_(layers) {}

Result<MatrixView<float>> Model::forward(const ExecContext& ctx, const StepPlan& plan,
                                         std::span<const SequenceCacheView> caches, StepObserver* observer,
                                         PhaseTimes* times) const {
  ctx.arena.reset();
  TANDEM_RETURN_IF_ERROR(check_step_plan(config_, plan, caches, ctx.arena));
  if (experts_ != nullptr) TANDEM_RETURN_IF_ERROR(experts_->begin_step());
  return run(StepContext{.exec = ctx,
                         .config = config_,
                         .options = options_,
                         .plan = plan,
                         .caches = caches,
                         .experts = experts_,
                         .observer = observer,
                         .times = times});
}

Result<MatrixView<float>> Model::run(const StepContext& step) const {
  const Result<MatrixView<float>> embedded = embed(step, weights_.embed_tokens);
  if (!embedded.is_ok()) return embedded.status();
  ResidualStream residual(step, embedded.value());

  for (int64_t l = 0; l < config_.num_hidden_layers; ++l) {
    const LayerWeights& layer = weights_.layers[static_cast<size_t>(l)];
    if (layers_ != nullptr) TANDEM_RETURN_IF_ERROR(layers_->enter(l));

    Result<MatrixView<const float>> h = residual.attention_input(l, layer.self_attention_res);
    if (!h.is_ok()) return h.status();
    tap(step, Tap::kAttnIn, l, h.value());
    MatrixView<float> y = residual.next_output();
    TANDEM_RETURN_IF_ERROR(attention(step, l, layer, h.value(), y));
    tap(step, Tap::kAttnOut, l, y);
    if (experts_ != nullptr) experts_->advance();
    TANDEM_RETURN_IF_ERROR(residual.add(y));

    h = residual.feed_forward_input(layer.mlp_res);
    if (!h.is_ok()) return h.status();
    tap(step, Tap::kMlpIn, l, h.value());
    y = residual.next_output();
    TANDEM_RETURN_IF_ERROR(feed_forward(step, l, weights_.layers, h.value(), y));
    tap(step, Tap::kMlpOut, l, y);
    TANDEM_RETURN_IF_ERROR(residual.add(y));
    tap(step, Tap::kLayerOut, l, residual.current());
  }

  const Result<MatrixView<const float>> h = residual.final_input(weights_.output_attn_res);
  if (!h.is_ok()) return h.status();
  if (step.observer != nullptr) {
    tap(step, Tap::kFinalIn, config_.num_hidden_layers, h.value());
    const Result<MatrixView<float>> all = norm_rows(step, h.value(), weights_.norm);
    if (!all.is_ok()) return all.status();
    tap(step, Tap::kFinalHidden, config_.num_hidden_layers, all.value());
  }
  const Result<MatrixView<float>> hidden = norm_rows(step, gather_wanted_rows(step, h.value()), weights_.norm);
  if (!hidden.is_ok()) return hidden.status();
  if (layers_ != nullptr) TANDEM_RETURN_IF_ERROR(layers_->enter(config_.num_hidden_layers));
  const PhaseTimer timer(step.times, Phase::kHead);
  const MatrixView<float> logits = alloc_rows(step, hidden.value().shape[0], config_.vocab_size);
  const std::array<LinearOutput, 1> output = {{{weights_.lm_head, logits}}};
  TANDEM_RETURN_IF_ERROR(linear(step.exec, {.x = hidden.value(), .outputs = output}));
  return logits;
}

}  // namespace tandem

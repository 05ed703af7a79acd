#include "train/modules/train_model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/cat.h"
#include "train/modules/functional.h"
#include "train/modules/kda.h"
#include "train/modules/mla.h"
#include "train/modules/recompute.h"
#include "train/modules/residual.h"
#include "weights/init_values.h"

namespace tandem::train {
namespace {

bool is_routed_expert(TensorRole role) {
  return role == TensorRole::kExpertW1 || role == TensorRole::kExpertW2 || role == TensorRole::kExpertW3;
}

at::Tensor run_sublayer(bool again, const at::Tensor& h, const LayerParameters& weights, const Sublayer& sublayer) {
  return again ? recompute(sublayer, h, weights) : sublayer(h, weights);
}

// "….experts.7.w1.weight" → "….experts.*.w1.weight".
std::string stacked_name(std::string_view name) {
  constexpr std::string_view kMarker = ".experts.";
  const size_t digits = name.rfind(kMarker) + kMarker.size();
  std::string stacked(name.substr(0, digits));
  stacked += '*';
  stacked += name.substr(name.find('.', digits));
  return stacked;
}

ValueRule training_rule(const ModelConfig& config, const ExpectedTensor& tensor) {
  ValueRule rule = init_rule(config, tensor);
  switch (tensor.role) {
    case TensorRole::kSelfAttentionResProj:
    case TensorRole::kMlpResProj:
    case TensorRole::kOutputAttnResProj:
    case TensorRole::kRouterBias: return {ValueKind::kNormal, 0.f, 0.f, -1};
    case TensorRole::kLmHead: rule.spread *= 0.25f; return rule;
    case TensorRole::kKdaALog:
    case TensorRole::kKdaDtBias: return rule;
    default: break;
  }
  if (tensor.shape.size() == 1) rule.spread = 0.f;  // norms: their centre alone
  return rule;
}

}  // namespace

Status check_mtp(const ModelConfig& config) {
  const int64_t layers = config.num_nextn_predict_layers;
  if (layers == 0 || (layers == 1 && config.kv_lora_rank > 0)) return Status::ok();
  return Status::invalid(layers == 1 ? std::string("num_nextn_predict_layers: expected 0 without MLA, found 1")
                                     : cat("num_nextn_predict_layers: expected 0 or 1, found ", layers));
}

int64_t num_held_values(const ModelConfig& config) {
  int64_t values = 0;
  for_each_expected_tensor(config, [&](const ExpectedTensor& tensor) {
    if (is_held(config, tensor) && !is_mtp_copy(tensor)) values += tensor.num_elements();
  });
  return values;
}

void TrainModel::allocate(at::ScalarType type, at::Device device) {
  scopes_.resize(static_cast<size_t>(config_.num_hidden_layers) + (has_mtp(config_) ? 2 : 1));
  const auto options = at::TensorOptions().dtype(type).device(device);
  for_each_expected_tensor(config_, [&](const ExpectedTensor& tensor) {
    if (!is_held(config_, tensor) || is_mtp_copy(tensor) || tensor.expert > 0) return;
    std::vector<int64_t> shape(tensor.shape.begin(), tensor.shape.end());
    if (tensor.role == TensorRole::kKdaALog) shape = {config_.kda_num_heads};
    if (is_routed_expert(tensor.role)) shape.insert(shape.begin(), config_.num_experts);
    Parameter parameter;
    parameter.name = is_routed_expert(tensor.role) ? stacked_name(tensor.name) : std::string(tensor.name);
    parameter.role = tensor.role;
    parameter.group = tensor.group;
    parameter.layer = tensor.layer;
    parameter.trainable = tensor.role != TensorRole::kRouterBias;
    parameter.value = at::zeros(shape, options);
    scope(tensor.layer)[tensor.role] = parameter.value;
    parameters_.push_back(std::move(parameter));
  });
}

void TrainModel::set_requires_grad() {
  for (Parameter& parameter : parameters_) parameter.value.set_requires_grad(parameter.trainable);
}

at::Tensor TrainModel::slice_of(const ExpectedTensor& tensor) const {
  if (is_mtp_copy(tensor)) {
    const bool tied = config_.tie_word_embeddings;
    return layer_parameters(-1)[tied ? TensorRole::kEmbedTokens : tensor.role].detach();
  }
  const at::Tensor value = layer_parameters(tensor.layer)[tensor.role].detach();
  return tensor.expert >= 0 ? value.select(0, tensor.expert) : value;
}

void TrainModel::for_each_released(FunctionRef<void(const ExpectedTensor&, const at::Tensor&)> visit) const {
  for_each_expected_tensor(config_, [&](const ExpectedTensor& tensor) {
    if (is_held(config_, tensor)) visit(tensor, slice_of(tensor));
  });
}

const Parameter* TrainModel::find(std::string_view name) const {
  const auto found =
      std::find_if(parameters_.begin(), parameters_.end(), [&](const Parameter& p) { return p.name == name; });
  return found == parameters_.end() ? nullptr : &*found;
}

TrainModel TrainModel::random(const ModelConfig& config, uint64_t seed, InitStyle style, at::ScalarType type,
                              at::Device device) {
  TrainModel model(config);
  model.allocate(type, device);
  std::vector<float> values;
  model.for_each_released([&](const ExpectedTensor& tensor, const at::Tensor& slice) {
    if (is_mtp_copy(tensor)) return;
    const ValueRule rule = style == InitStyle::kTraining ? training_rule(config, tensor) : init_rule(config, tensor);
    values.resize(static_cast<size_t>(slice.numel()));
    fill_random(rule, DType::kF32, random_stream(seed, tensor.name), 0, std::as_writable_bytes(std::span(values)));
    slice.copy_(at::from_blob(values.data(), slice.sizes(), at::kFloat));
  });
  model.set_requires_grad();
  return model;
}

at::Tensor TrainModel::attention(int64_t layer, const at::Tensor& h, const LayerParameters& weights,
                                 const SequenceLayout& layout) const {
  const at::Tensor x = rms_norm(h, weights[TensorRole::kInputLayernorm], config_.rms_norm_eps);
  const bool kda = layer < config_.num_hidden_layers && config_.kinds[static_cast<size_t>(layer)] == LayerKind::kKda;
  return kda ? kda_layer(config_, weights, x, layout) : mla_layer(config_, weights, x, layout);
}

at::Tensor TrainModel::feed_forward(int64_t layer, const at::Tensor& h, const LayerParameters& weights,
                                    const MoeOptions& options) const {
  const at::Tensor x = rms_norm(h, weights[TensorRole::kPostAttentionLayernorm], config_.rms_norm_eps);
  return config_.is_moe(layer) ? moe_layer(config_, weights, x, options) : dense_mlp(config_, weights, x);
}

at::Tensor TrainModel::run_feed_forward(int64_t layer, const at::Tensor& h, const ForwardOptions& options) const {
  // Filled by the first run; the backward pass has no place of its own to write to.
  auto routing = std::make_shared<Routing>();
  const auto sublayer = [this, layer, routing, weights_in_4 = options.mxfp4_experts,
                         inputs_in_8 = options.mxfp8_activations](const at::Tensor& x, const LayerParameters& weights) {
    return feed_forward(layer, x, weights,
                        {.mxfp4_experts = weights_in_4, .mxfp8_activations = inputs_in_8, .routing = routing.get()});
  };
  at::Tensor y = run_sublayer(options.recompute_sublayers, h, layer_parameters(layer), sublayer);
  if (options.routing != nullptr) (*options.routing)[static_cast<size_t>(layer)] = *routing;
  return y;
}

at::Tensor TrainModel::hidden(const at::Tensor& tokens, const SequenceLayout& layout,
                              const ForwardOptions& options) const {
  using Role = TensorRole;
  const LayerParameters& globals = layer_parameters(-1);
  if (options.routing != nullptr) options.routing->assign(scopes_.size() - 1, Routing{});
  const auto kept_layout = std::make_shared<const SequenceLayout>(layout);
  ResidualStream residual(config_, at::embedding(globals[Role::kEmbedTokens], tokens).to(options.compute));
  for (int64_t l = 0; l < config_.num_hidden_layers; ++l) {
    const LayerParameters& weights = layer_parameters(l);
    const at::Tensor h =
        residual.attention_input(l, weights[Role::kSelfAttentionResNorm], weights[Role::kSelfAttentionResProj]);
    residual.add(run_sublayer(options.recompute_sublayers, h, weights,
                              [this, l, kept_layout](const at::Tensor& x, const LayerParameters& w) {
                                return attention(l, x, w, *kept_layout);
                              }));
    residual.add(run_feed_forward(l, residual.mix(weights[Role::kMlpResNorm], weights[Role::kMlpResProj]), options));
  }
  const at::Tensor last = residual.mix(globals[Role::kOutputAttnResNorm], globals[Role::kOutputAttnResProj]);
  if (options.before_norm != nullptr) *options.before_norm = last;
  return rms_norm(last, globals[Role::kFinalNorm], config_.rms_norm_eps);
}

at::Tensor TrainModel::mtp_hidden(const at::Tensor& before_norm, const at::Tensor& next_tokens,
                                  const SequenceLayout& layout, const ForwardOptions& options) const {
  using Role = TensorRole;
  const int64_t l = config_.num_hidden_layers;
  const LayerParameters& weights = layer_parameters(l);
  const auto kept_layout = std::make_shared<const SequenceLayout>(layout);
  const at::Tensor embedded = at::embedding(layer_parameters(-1)[Role::kEmbedTokens], next_tokens)
                                  .to(options.compute)
                                  .masked_fill(layout.position.eq(0).unsqueeze(1), 0);
  const double eps = config_.rms_norm_eps;
  const at::Tensor both = at::cat({rms_norm(embedded, weights[Role::kMtpEmbeddingNorm], eps),
                                   rms_norm(before_norm, weights[Role::kMtpHiddenNorm], eps)},
                                  1);
  at::Tensor h = project(both, weights[Role::kMtpProj]);
  h = h + run_sublayer(options.recompute_sublayers, h, weights,
                       [this, l, kept_layout](const at::Tensor& x, const LayerParameters& w) {
                         return attention(l, x, w, *kept_layout);
                       });
  h = h + run_feed_forward(l, h, options);
  return rms_norm(h, weights[Role::kFinalNorm], eps);
}

at::Tensor TrainModel::head(const at::Tensor& hidden_rows) const {
  return project(hidden_rows,
                 layer_parameters(-1)[config_.tie_word_embeddings ? TensorRole::kEmbedTokens : TensorRole::kLmHead]);
}

}  // namespace tandem::train

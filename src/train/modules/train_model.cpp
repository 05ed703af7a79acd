#include "train/modules/train_model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <memory>

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

void TrainModel::allocate(at::ScalarType type, at::Device device) {
  scopes_.resize(static_cast<size_t>(config_.num_hidden_layers) + 1);
  const auto options = at::TensorOptions().dtype(type).device(device);
  for_each_expected_tensor(config_, [&](const ExpectedTensor& tensor) {
    if (!tensor.run || tensor.expert > 0) return;
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
  const at::Tensor value = layer_parameters(tensor.layer)[tensor.role].detach();
  return tensor.expert >= 0 ? value.select(0, tensor.expert) : value;
}

void TrainModel::for_each_released(FunctionRef<void(const ExpectedTensor&, const at::Tensor&)> visit) const {
  for_each_expected_tensor(config_, [&](const ExpectedTensor& tensor) {
    if (tensor.run) visit(tensor, slice_of(tensor));
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
  return config_.kinds[static_cast<size_t>(layer)] == LayerKind::kKda ? kda_layer(config_, weights, x, layout)
                                                                      : mla_layer(config_, weights, x, layout);
}

at::Tensor TrainModel::feed_forward(int64_t layer, const at::Tensor& h, const LayerParameters& weights,
                                    const MoeOptions& options) const {
  const at::Tensor x = rms_norm(h, weights[TensorRole::kPostAttentionLayernorm], config_.rms_norm_eps);
  return config_.is_moe(layer) ? moe_layer(config_, weights, x, options) : dense_mlp(config_, weights, x);
}

at::Tensor TrainModel::hidden(const at::Tensor& tokens, const SequenceLayout& layout,
                              const ForwardOptions& options) const {
  using Role = TensorRole;
  const LayerParameters& globals = layer_parameters(-1);
  if (options.routing != nullptr) {
    options.routing->assign(static_cast<size_t>(config_.num_hidden_layers), Routing{});
  }
  const auto kept_layout = std::make_shared<const SequenceLayout>(layout);
  const auto run = [&](const at::Tensor& h, const LayerParameters& weights, const Sublayer& sublayer) {
    return options.recompute_sublayers ? recompute(sublayer, h, weights) : sublayer(h, weights);
  };
  ResidualStream residual(config_, at::embedding(globals[Role::kEmbedTokens], tokens).to(options.compute));
  for (int64_t l = 0; l < config_.num_hidden_layers; ++l) {
    const LayerParameters& weights = layer_parameters(l);
    at::Tensor h =
        residual.attention_input(l, weights[Role::kSelfAttentionResNorm], weights[Role::kSelfAttentionResProj]);
    residual.add(run(h, weights, [this, l, kept_layout](const at::Tensor& x, const LayerParameters& w) {
      return attention(l, x, w, *kept_layout);
    }));
    h = residual.mix(weights[Role::kMlpResNorm], weights[Role::kMlpResProj]);
    // Filled by the first run; the backward pass has no place of its own to write to.
    auto routing = std::make_shared<Routing>();
    residual.add(
        run(h, weights,
            [this, l, routing, weights_in_4 = options.mxfp4_experts, inputs_in_8 = options.mxfp8_activations](
                const at::Tensor& x, const LayerParameters& w) {
              return feed_forward(
                  l, x, w,
                  {.mxfp4_experts = weights_in_4, .mxfp8_activations = inputs_in_8, .routing = routing.get()});
            }));
    if (options.routing != nullptr) (*options.routing)[static_cast<size_t>(l)] = *routing;
  }
  return rms_norm(residual.mix(globals[Role::kOutputAttnResNorm], globals[Role::kOutputAttnResProj]),
                  globals[Role::kFinalNorm], config_.rms_norm_eps);
}

at::Tensor TrainModel::head(const at::Tensor& hidden_rows) const {
  return project(hidden_rows,
                 layer_parameters(-1)[config_.tie_word_embeddings ? TensorRole::kEmbedTokens : TensorRole::kLmHead]);
}

}  // namespace tandem::train

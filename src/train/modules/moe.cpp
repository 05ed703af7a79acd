#include "train/modules/moe.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/cat.h"
#include "tensor/mxfp4.h"
#include "train/modules/functional.h"
#include "train/modules/mxfp4_fake_quant.h"
#include "train/modules/mxfp8_fake_quant.h"
#include "train/modules/sequence_layout.h"

namespace tandem::train {
namespace {

// b with −∞ in the groups that are refused: a group's score is the sum of its two largest.
at::Tensor mask_refused_groups(const at::Tensor& biased, int64_t num_groups, int64_t topk_group) {
  const at::Tensor groups = biased.reshape({biased.size(0), num_groups, biased.size(1) / num_groups});
  const int64_t summed = std::min<int64_t>(2, groups.size(2));
  const at::Tensor score = std::get<0>(groups.topk(summed, 2)).sum(2);
  const at::Tensor order = std::get<1>(score.sort(/*stable=*/true, 1, /*descending=*/true));
  const at::Tensor refused =
      at::ones(score.sizes(), score.options().dtype(at::kBool)).scatter(1, order.narrow(1, 0, topk_group), false);
  return groups.masked_fill(refused.unsqueeze(2), -std::numeric_limits<double>::infinity()).reshape(biased.sizes());
}

// z [T, D] at token [n], zeros where token is T; place [T, k]: where the copies of a token are. The gradient is a sum
// over k in a fixed order.
class Dispatch : public torch::autograd::Function<Dispatch> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& z, const at::Tensor& token,
                            const at::Tensor& place) {
    ctx->save_for_backward({place});
    return gather_padded(z, token);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradient) {
    const at::Tensor place = ctx->get_saved_variables()[0];
    const at::Tensor copies = gather_padded(gradient[0], place.reshape({-1}));
    return {copies.reshape({place.size(0), place.size(1), copies.size(1)}).sum(1), at::Tensor(), at::Tensor()};
  }
};

// Experts e_1 … e_m with their rows side by side, m · length.
struct ExpertBucket {
  std::vector<int64_t> experts;  // by falling load
  int64_t length = 0;
};

std::vector<ExpertBucket> bucket_experts(const std::vector<int64_t>& load) {
  std::vector<int64_t> order(load.size());
  std::iota(order.begin(), order.end(), 0);
  const auto load_of = [&](int64_t expert) { return load[static_cast<size_t>(expert)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return load_of(a) > load_of(b); });
  std::vector<ExpertBucket> buckets;
  for (const int64_t expert : order) {
    if (load_of(expert) == 0) break;
    if (buckets.empty() || 2 * load_of(expert) <= buckets.back().length) buckets.push_back({{}, load_of(expert)});
    buckets.back().experts.push_back(expert);
  }
  return buckets;
}

at::Tensor expert_mlp(const ModelConfig& config, const ExpertStack& experts, const at::Tensor& chosen,
                      const at::Tensor& rows) {
  const auto product = [&](const at::Tensor& x, const at::Tensor& stack) {
    const at::Tensor weight = chosen.defined() ? stack.index_select(0, chosen) : stack;
    return at::bmm(x, weight.to(x.scalar_type()).transpose(1, 2));
  };
  const at::Tensor inner = gated_act(config, product(rows, experts.w1), product(rows, experts.w3));
  return product(experts.mxfp8_inputs ? mxfp8_fake_quant(inner) : inner, experts.w2);
}

at::Tensor mlp(const ModelConfig& config, const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up,
               const at::Tensor& down) {
  return project(gated_act(config, project(x, gate), project(x, up)), down);
}

}  // namespace

Routing route(const ModelConfig& config, const at::Tensor& logits, const at::Tensor& bias) {
  const int64_t k = config.num_experts_per_token;
  const at::Tensor score = logits.sigmoid();
  Routing routing;
  routing.scores = score.detach();
  at::Tensor biased = routing.scores + bias.detach().to(score.scalar_type());
  if (config.topk_group < config.num_expert_group) {
    biased = mask_refused_groups(biased, config.num_expert_group, config.topk_group);
  }
  const auto [sorted, order] = biased.sort(/*stable=*/true, 1, /*descending=*/true);
  if (k < sorted.size(1)) routing.cutoff = sorted.select(1, k);
  routing.ids = std::get<0>(order.narrow(1, 0, k).sort(1));
  routing.weights = score.gather(1, routing.ids);
  if (config.moe_renormalize && k > 1) routing.weights = routing.weights / (routing.weights.sum(1, true) + 1e-20);
  routing.weights = routing.weights * config.routed_scaling_factor;
  return routing;
}

at::Tensor routed_experts(const ModelConfig& config, const ExpertStack& experts, const at::Tensor& z,
                          const Routing& routing) {
  const int64_t tokens = z.size(0), k = routing.ids.size(1), num_experts = experts.w1.size(0);
  if (tokens == 0) return at::zeros_like(z);
  const at::Tensor expert_of = routing.ids.reshape({-1});
  const at::Tensor order = std::get<1>(expert_of.sort(/*stable=*/true, 0, /*descending=*/false));
  const at::Tensor load_host = expert_of.bincount({}, num_experts).cpu();
  const std::vector<int64_t> load(load_host.data_ptr<int64_t>(), load_host.data_ptr<int64_t>() + num_experts);
  std::vector<int64_t> begin(load.size());
  std::exclusive_scan(load.begin(), load.end(), begin.begin(), int64_t{0});

  const at::Tensor padded_order = at::constant_pad_nd(order, {0, 1}, tokens * k);
  const std::vector<ExpertBucket> buckets = bucket_experts(load);
  std::vector<at::Tensor> places;  // of (token, slot) pairs, bucket by bucket; tokens · k where padded
  for (const ExpertBucket& bucket : buckets) {
    const at::Tensor chosen = at::tensor(bucket.experts, at::TensorOptions().dtype(at::kLong));
    const at::Tensor first = at::tensor(begin, at::TensorOptions().dtype(at::kLong)).index_select(0, chosen);
    const at::Tensor limit = load_host.index_select(0, chosen);
    const auto on_device = [&](const at::Tensor& x) { return x.to(z.device()).unsqueeze(1); };
    const at::Tensor slot = at::arange(bucket.length, order.options()).unsqueeze(0);
    const at::Tensor place =
        at::where(slot < on_device(limit), on_device(first) + slot, at::full({}, tokens * k, order.options()));
    places.push_back(padded_order.index_select(0, place.reshape({-1})));
  }
  // Where each (token, slot) pair went; the entry behind the last collects the padding.
  const at::Tensor taken = at::cat(places);
  const at::Tensor place_of = at::empty({tokens * k + 1}, taken.options())
                                  .scatter(0, taken, at::arange(taken.size(0), taken.options()))
                                  .narrow(0, 0, tokens * k)
                                  .contiguous();
  const at::Tensor token_of = at::floor_divide(taken, k);  // tokens · k → tokens: padding stays padding
  const at::Tensor input = experts.mxfp8_inputs ? mxfp8_fake_quant(z) : z;
  const at::Tensor rows = Dispatch::apply(input, token_of, place_of.reshape({tokens, k}));
  std::vector<at::Tensor> outputs;
  int64_t at_row = 0;
  for (const ExpertBucket& bucket : buckets) {
    const auto count = static_cast<int64_t>(bucket.experts.size());
    const at::Tensor chosen = at::tensor(bucket.experts, at::TensorOptions().dtype(at::kLong)).to(z.device());
    const at::Tensor part = rows.narrow(0, at_row, count * bucket.length).reshape({count, bucket.length, z.size(1)});
    outputs.push_back(expert_mlp(config, experts, chosen, part).reshape({-1, z.size(1)}));
    at_row += count * bucket.length;
  }
  const at::Tensor all = outputs.size() == 1 ? outputs[0] : at::cat(outputs);
  const at::Tensor picked = permute_padded(all, place_of, taken).reshape({tokens, k, z.size(1)});
  return at::bmm(routing.weights.unsqueeze(1), picked.to(routing.weights.scalar_type())).squeeze(1).to(z.scalar_type());
}

Status check_mxfp8_widths(const ModelConfig& config) {
  const int64_t Dl = config.expert_input_size(), I = config.moe_intermediate_size;
  if (config.num_experts == 0 || (Dl % kMxGroup == 0 && I % kMxGroup == 0)) return Status::ok();
  return Status::invalid(
      cat("mxfp8_activations: expected experts whose inputs are multiples of 32 wide, found ", Dl, " and ", I));
}

at::Tensor dense_mlp(const ModelConfig& config, const LayerParameters& weights, const at::Tensor& x) {
  return mlp(config, x, weights[TensorRole::kMlpGateProj], weights[TensorRole::kMlpUpProj],
             weights[TensorRole::kMlpDownProj]);
}

at::Tensor moe_layer(const ModelConfig& config, const LayerParameters& weights, const at::Tensor& x,
                     const MoeOptions& options) {
  using Role = TensorRole;
  const at::Tensor logits = project(widen(x), weights[Role::kRouter]);
  const Routing routing = route(config, logits, weights[Role::kRouterBias]);
  if (options.routing != nullptr) *options.routing = routing;

  ExpertStack experts{weights[Role::kExpertW1], weights[Role::kExpertW3], weights[Role::kExpertW2]};
  if (options.mxfp4_experts) {
    experts = {mxfp4_fake_quant(experts.w1), mxfp4_fake_quant(experts.w3), mxfp4_fake_quant(experts.w2)};
  }
  experts.mxfp8_inputs = options.mxfp8_activations;
  const bool latent = config.has_latent_experts();
  at::Tensor y = routed_experts(config, experts, latent ? project(x, weights[Role::kLatentDown]) : x, routing);
  if (latent) {
    if (config.latent_moe_use_norm) y = rms_norm(y, weights[Role::kLatentNorm], config.rms_norm_eps);
    y = project(y, weights[Role::kLatentUp]);
  }
  if (config.num_shared_experts == 0) return y;
  return y +
         mlp(config, x, weights[Role::kSharedGateProj], weights[Role::kSharedUpProj], weights[Role::kSharedDownProj]);
}

}  // namespace tandem::train

#include "cost/weight_sizes.h"

#include "weights/checkpoint_check.h"

namespace tandem {
namespace {

void add(WeightAmount& total, int64_t parameters, int64_t bytes) {
  total.parameters += parameters;
  total.bytes += bytes;
}

// A matrix of the trunk. `is_last`: of the last layer.
void add_trunk(WeightSizes& sizes, TensorRole role, bool is_last, int64_t parameters, int64_t bytes) {
  sizes.num_matrices += 1;
  add(sizes.trunk, parameters, bytes);
  if (!is_last) return;
  switch (role) {
    // What fills the caches: every row.
    case TensorRole::kKdaQProj:
    case TensorRole::kKdaKProj:
    case TensorRole::kKdaVProj:
    case TensorRole::kKdaFAProj:
    case TensorRole::kKdaFBProj:
    case TensorRole::kKdaBProj:
    case TensorRole::kMlaKvAProj: return;
    case TensorRole::kMlaKvBProj: return add(sizes.last_kv_b, parameters, bytes);
    default: return add(sizes.last_behind_cache, parameters, bytes);
  }
}

// Sums tensors of the list, whatever says how each is stored.
class Sum {
 public:
  explicit Sum(const ModelConfig& config) : config_(config) {
    for (int64_t l = 0; l < config.num_hidden_layers; ++l) sizes_.moe_layers += config.is_moe(l) ? 1 : 0;
    sizes_.experts_per_layer = sizes_.moe_layers > 0 ? config.num_experts : 0;
  }

  // `fits_bf16`: as it is stored, if it is a matrix.
  void add_tensor(const ExpectedTensor& tensor, int64_t bytes, bool fits_bf16) {
    sizes_.file_bytes += bytes;
    if (!tensor.run) return;
    sizes_.fits_bf16 &=
        fits_bf16 || !is_matrix(tensor) || (tensor.group == TensorGroup::kEmbedding && !config_.tie_word_embeddings);
    const int64_t parameters = tensor.num_elements();
    add(sizes_.groups[static_cast<size_t>(tensor.group)], parameters, bytes);
    if (tensor.group == TensorGroup::kRoutedExpert || tensor.group == TensorGroup::kEmbedding) return;
    if (!is_matrix(tensor)) {
      sizes_.vector_bytes += f32_copy_elements(tensor) * 4;
      return;
    }
    if (tensor.group == TensorGroup::kHead) {
      sizes_.num_matrices += 1;
      add(sizes_.head, parameters, bytes);
      return;
    }
    add_trunk(sizes_, tensor.role, tensor.layer + 1 == config_.num_hidden_layers, parameters, bytes);
  }

  WeightSizes take() {
    if (config_.tie_word_embeddings) {
      sizes_.head = sizes_.group(TensorGroup::kEmbedding);
      sizes_.num_matrices += 1;
    }
    const int64_t experts = sizes_.num_experts();
    const WeightAmount& routed = sizes_.group(TensorGroup::kRoutedExpert);
    if (experts > 0) sizes_.expert = {routed.parameters / experts, routed.bytes / experts};
    return sizes_;
  }

 private:
  // An AttnRes pseudo-query is [1, D] in the file and bound as a vector.
  static bool is_matrix(const ExpectedTensor& tensor) {
    return tensor.shape.size() == 2 && tensor.group != TensorGroup::kAttnRes;
  }
  // The AttnRes pair is folded into one vector; A_log's padding is dropped.
  int64_t f32_copy_elements(const ExpectedTensor& tensor) const {
    if (tensor.group == TensorGroup::kAttnRes && tensor.shape.size() == 2) return 0;
    if (tensor.role == TensorRole::kKdaALog) return config_.kda_num_heads;
    return tensor.num_elements();
  }

  const ModelConfig& config_;
  WeightSizes sizes_;
};

bool fits_bf16(const WeightView& view) {
  return view.format == WeightFormat::kBF16 || view.format == WeightFormat::kMxfp4;
}

// The trunk's matrices of one layer, by role.
class LayerTrunk {
 public:
  LayerTrunk(WeightSizes& sizes, bool is_last) : sizes_(sizes), is_last_(is_last) {}

  void add_attention(const LayerWeights& layer) {
    if (const auto* kda = std::get_if<KdaLayerWeights>(&layer.attention)) return add_kda(*kda);
    const auto& mla = std::get<MlaLayerWeights>(layer.attention);
    add(TensorRole::kMlaQProj, mla.q_proj);
    add(TensorRole::kMlaQAProj, mla.q_a_proj);
    add(TensorRole::kMlaQBProj, mla.q_b_proj);
    add(TensorRole::kMlaKvAProj, mla.kv_a_proj);
    add(TensorRole::kMlaKvBProj, mla.kv_b_proj);
    add(TensorRole::kMlaGProj, mla.g_proj);
    add(TensorRole::kMlaOProj, mla.o_proj);
  }
  void add_mlp(const MlpWeights& mlp) {
    add(TensorRole::kMlpGateProj, mlp.gate_proj);
    add(TensorRole::kMlpUpProj, mlp.up_proj);
    add(TensorRole::kMlpDownProj, mlp.down_proj);
  }
  void add_moe(const MoeLayerWeights& moe) {
    add(TensorRole::kRouter, moe.router);
    add(TensorRole::kLatentDown, moe.latent_down);
    add(TensorRole::kLatentUp, moe.latent_up);
    if (!moe.shared_experts) return;
    add(TensorRole::kSharedGateProj, moe.shared_experts->gate_proj);
    add(TensorRole::kSharedUpProj, moe.shared_experts->up_proj);
    add(TensorRole::kSharedDownProj, moe.shared_experts->down_proj);
  }

 private:
  void add(TensorRole role, const WeightView& view) {
    if (view.empty()) return;
    sizes_.fits_bf16 &= fits_bf16(view);
    add_trunk(sizes_, role, is_last_, view.rows * view.cols, view.total_bytes());
  }
  void add_kda(const KdaLayerWeights& kda) {
    add(TensorRole::kKdaQProj, kda.q_proj);
    add(TensorRole::kKdaKProj, kda.k_proj);
    add(TensorRole::kKdaVProj, kda.v_proj);
    add(TensorRole::kKdaFAProj, kda.f_a_proj);
    add(TensorRole::kKdaFBProj, kda.f_b_proj);
    add(TensorRole::kKdaBProj, kda.b_proj);
    add(TensorRole::kKdaGProj, kda.g_proj);
    add(TensorRole::kKdaGAProj, kda.g_a_proj);
    add(TensorRole::kKdaGBProj, kda.g_b_proj);
    add(TensorRole::kKdaOProj, kda.o_proj);
  }

  WeightSizes& sizes_;
  bool is_last_;
};

}  // namespace

WeightAmount WeightSizes::text() const {
  WeightAmount total;
  for (const WeightAmount& amount : groups) add(total, amount.parameters, amount.bytes);
  return total;
}

int64_t WeightSizes::active_parameters(int64_t experts_per_token) const {
  return text().parameters - group(TensorGroup::kEmbedding).parameters - group(TensorGroup::kRoutedExpert).parameters +
         moe_layers * experts_per_token * expert.parameters;
}

WeightSizes released_weight_sizes(const ModelConfig& config) {
  Sum sum(config);
  for_each_expected_tensor(config, [&](const ExpectedTensor& tensor) {
    sum.add_tensor(tensor, tensor.released_bytes(), tensor.released != ReleasedForm::kF32);
  });
  return sum.take();
}

Result<WeightSizes> stored_weight_sizes(const Checkpoint& checkpoint, const ModelConfig& config) {
  Sum sum(config);
  const CheckpointReport report = check_checkpoint(
      checkpoint, config, [&](const ExpectedTensor& tensor, const StoredTensor& stored, std::vector<std::string>&) {
        uint64_t bytes = stored.weight.num_bytes;
        if (stored.scale) bytes += stored.scale->num_bytes;
        const bool fits_bf16 = stored.scale.has_value() || stored.weight.dtype == DType::kBF16;
        sum.add_tensor(tensor, static_cast<int64_t>(bytes), fits_bf16);
      });
  TANDEM_RETURN_IF_ERROR(report.to_status(checkpoint.dir()));
  return sum.take();
}

WeightSizes bound_weight_sizes(const ModelWeights& weights) {
  WeightSizes sizes;
  WeightAmount routed;
  int64_t experts = 0;
  for (const LayerWeights& layer : weights.layers) {
    LayerTrunk trunk(sizes, &layer == &weights.layers.back());
    trunk.add_attention(layer);
    if (const auto* mlp = std::get_if<MlpWeights>(&layer.feed_forward)) {
      trunk.add_mlp(*mlp);
      continue;
    }
    const auto& moe = std::get<MoeLayerWeights>(layer.feed_forward);
    trunk.add_moe(moe);
    for (const ExpertWeights& expert : moe.experts) {
      for (const WeightView* w : {&expert.w1, &expert.w3, &expert.w2}) {
        add(routed, w->rows * w->cols, w->total_bytes());
        sizes.fits_bf16 &= fits_bf16(*w);
      }
    }
    experts += static_cast<int64_t>(moe.experts.size());
    sizes.moe_layers += 1;
    sizes.experts_per_layer = static_cast<int64_t>(moe.experts.size());
  }
  if (experts > 0) sizes.expert = {routed.parameters / experts, routed.bytes / experts};
  sizes.num_matrices += 1;
  sizes.fits_bf16 &= fits_bf16(weights.lm_head);
  add(sizes.head, weights.lm_head.rows * weights.lm_head.cols, weights.lm_head.total_bytes());
  return sizes;
}

}  // namespace tandem

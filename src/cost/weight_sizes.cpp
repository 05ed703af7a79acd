#include "cost/weight_sizes.h"

#include "weights/checkpoint_check.h"

namespace tandem {
namespace {

void add(WeightAmount& total, int64_t parameters, int64_t bytes) {
  total.parameters += parameters;
  total.bytes += bytes;
}

// Sums tensors of the list, whatever says how each is stored.
class Sum {
 public:
  explicit Sum(const ModelConfig& config) : config_(config) {
    for (int64_t l = 0; l < config.num_hidden_layers; ++l) sizes_.moe_layers += config.is_moe(l) ? 1 : 0;
    sizes_.experts_per_layer = sizes_.moe_layers > 0 ? config.num_experts : 0;
  }

  void add_tensor(const ExpectedTensor& tensor, int64_t bytes) {
    sizes_.file_bytes += bytes;
    if (!tensor.run) return;
    const int64_t parameters = tensor.num_elements();
    add(sizes_.groups[static_cast<size_t>(tensor.group)], parameters, bytes);
    if (tensor.group == TensorGroup::kRoutedExpert || tensor.group == TensorGroup::kEmbedding) return;
    if (!is_matrix(tensor)) {
      sizes_.vector_bytes += f32_copy_elements(tensor) * 4;
      return;
    }
    sizes_.num_matrices += 1;
    add(tensor.group == TensorGroup::kHead ? sizes_.head : sizes_.trunk, parameters, bytes);
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

void add_view(WeightSizes& sizes, WeightAmount& total, const WeightView& view) {
  if (view.empty()) return;
  add(total, view.rows * view.cols, view.total_bytes());
  sizes.num_matrices += 1;
}

void add_mlp(WeightSizes& sizes, const MlpWeights& mlp) {
  for (const WeightView* w : {&mlp.gate_proj, &mlp.up_proj, &mlp.down_proj}) add_view(sizes, sizes.trunk, *w);
}

void add_attention(WeightSizes& sizes, const LayerWeights& layer) {
  if (const auto* kda = std::get_if<KdaLayerWeights>(&layer.attention)) {
    for (const WeightView* w : {&kda->q_proj, &kda->k_proj, &kda->v_proj, &kda->f_a_proj, &kda->f_b_proj, &kda->b_proj,
                                &kda->g_proj, &kda->g_a_proj, &kda->g_b_proj, &kda->o_proj}) {
      add_view(sizes, sizes.trunk, *w);
    }
    return;
  }
  const auto& mla = std::get<MlaLayerWeights>(layer.attention);
  for (const WeightView* w :
       {&mla.q_proj, &mla.q_a_proj, &mla.q_b_proj, &mla.kv_a_proj, &mla.kv_b_proj, &mla.g_proj, &mla.o_proj}) {
    add_view(sizes, sizes.trunk, *w);
  }
}

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
  for_each_expected_tensor(config,
                           [&](const ExpectedTensor& tensor) { sum.add_tensor(tensor, tensor.released_bytes()); });
  return sum.take();
}

Result<WeightSizes> stored_weight_sizes(const Checkpoint& checkpoint, const ModelConfig& config) {
  Sum sum(config);
  const CheckpointReport report = check_checkpoint(
      checkpoint, config, [&](const ExpectedTensor& tensor, const StoredTensor& stored, std::vector<std::string>&) {
        uint64_t bytes = stored.weight.num_bytes;
        if (stored.scale) bytes += stored.scale->num_bytes;
        sum.add_tensor(tensor, static_cast<int64_t>(bytes));
      });
  TANDEM_RETURN_IF_ERROR(report.to_status(checkpoint.dir()));
  return sum.take();
}

WeightSizes bound_weight_sizes(const ModelWeights& weights) {
  WeightSizes sizes;
  WeightAmount routed;
  int64_t experts = 0;
  for (const LayerWeights& layer : weights.layers) {
    add_attention(sizes, layer);
    if (const auto* mlp = std::get_if<MlpWeights>(&layer.feed_forward)) {
      add_mlp(sizes, *mlp);
      continue;
    }
    const auto& moe = std::get<MoeLayerWeights>(layer.feed_forward);
    for (const WeightView* w : {&moe.router, &moe.latent_down, &moe.latent_up}) add_view(sizes, sizes.trunk, *w);
    if (moe.shared_experts) add_mlp(sizes, *moe.shared_experts);
    for (const ExpertWeights& expert : moe.experts) {
      for (const WeightView* w : {&expert.w1, &expert.w3, &expert.w2}) {
        add(routed, w->rows * w->cols, w->total_bytes());
      }
    }
    experts += static_cast<int64_t>(moe.experts.size());
    sizes.moe_layers += 1;
    sizes.experts_per_layer = static_cast<int64_t>(moe.experts.size());
  }
  if (experts > 0) sizes.expert = {routed.parameters / experts, routed.bytes / experts};
  add_view(sizes, sizes.head, weights.lm_head);
  return sizes;
}

}  // namespace tandem

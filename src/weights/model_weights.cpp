#include "weights/model_weights.h"

#include <cstring>
#include <memory>

#include "base/cat.h"
#include "base/check.h"
#include "tensor/dtype.h"
#include "tensor/mxfp4.h"
#include "weights/checkpoint.h"
#include "weights/checkpoint_check.h"

namespace tandem {
namespace {

// Above this the scale bytes are not read at load: K3 has 85 GB of them. A NaN scale then shows as non-finite logits.
constexpr uint64_t kMaxScannedScaleBytes = uint64_t{256} << 20;

template <class T>
void widen_elements(std::span<const std::byte> bytes, std::vector<float>& out) {
  for (size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));  // the file aligns nothing
    if constexpr (std::is_same_v<T, float>) {
      out.push_back(value);
    } else {
      out.push_back(to_f32(value));
    }
  }
}

WeightFormat format_of(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return WeightFormat::kBF16;
    case DType::kF16: return WeightFormat::kF16;
    default: return WeightFormat::kF32;  // the check lets these three through
  }
}

// A copy of a matrix at an address that its element type does not allow.
void realign(WeightView& view, DType dtype, ModelWeights& weights) {
  const auto alignment = static_cast<uintptr_t>(dtype_size(dtype));
  if (reinterpret_cast<uintptr_t>(view.data) % alignment == 0) return;
  const auto bytes = static_cast<size_t>(view.rows * view.cols) * alignment;
  auto copy = std::make_unique_for_overwrite<std::byte[]>(bytes);
  std::memcpy(copy.get(), view.data, bytes);
  view.data = copy.get();
  weights.realigned.push_back(std::move(copy));
}

DType dtype_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBF16: return DType::kBF16;
    case WeightFormat::kF16: return DType::kF16;
    case WeightFormat::kF32: return DType::kF32;
    case WeightFormat::kMxfp4:
    case WeightFormat::kInt8: break;
  }
  return DType::kU8;  // bytes, which may lie anywhere
}

bool has_nan_scale(const WeightView& view) {
  return view.format == WeightFormat::kMxfp4 &&
         std::memchr(view.scale, kE8M0Nan, static_cast<size_t>(view.rows * view.cols / kMxGroup)) != nullptr;
}

// Puts each stored tensor where its role says.
class Binder {
 public:
  Binder(const Checkpoint& checkpoint, const ModelConfig& config, const BindOptions& options)
      : checkpoint_(checkpoint), config_(config), options_(options) {
    weights_.layers.resize(static_cast<size_t>(config.num_hidden_layers));
    for (size_t l = 0; l < weights_.layers.size(); ++l) {
      LayerWeights& layer = weights_.layers[l];
      if (config.kinds[l] == LayerKind::kMla) layer.attention = MlaLayerWeights{};
      if (!config.is_moe(static_cast<int64_t>(l))) continue;
      MoeLayerWeights moe;
      moe.experts.resize(static_cast<size_t>(config.num_experts));
      if (config.num_shared_experts > 0) moe.shared_experts.emplace();
      layer.feed_forward = std::move(moe);
    }
  }

  void bind(const ExpectedTensor& expected, const StoredTensor& stored, std::vector<std::string>& misshapen) {
    if (stored.scale.has_value() && !is_streamed(expected) && scanned_scale_bytes_ <= kMaxScannedScaleBytes) {
      scanned_scale_bytes_ += stored.scale->num_bytes;
      scales_.push_back(*stored.scale);
    }
    if (!expected.run) return;
    if (WeightView* matrix = matrix_slot(expected)) {
      *matrix = view_of(expected, stored);
    } else if (expected.role == TensorRole::kKdaALog) {
      bind_a_log(expected, stored.weight, misshapen);
    } else if (std::vector<float>* fold = attn_res_proj_slot(expected)) {
      fold_attn_res(stored.weight, *fold);
    } else {
      widen(stored.weight, vector_slot(expected));
    }
  }

  // Scale bytes of 255 mean NaN.
  void check_scales(uint64_t total_scale_bytes, std::vector<std::string>& misshapen) const {
    if (total_scale_bytes >= kMaxScannedScaleBytes) return;
    for (const TensorEntry& scale : scales_) {
      const std::span<const std::byte> bytes = checkpoint_.data(scale);
      const void* found = std::memchr(bytes.data(), kE8M0Nan, bytes.size());
      if (found == nullptr) continue;
      misshapen.push_back(cat(scale.name, " (", checkpoint_.shard_name(scale.shard),
                              ") holds the scale 255, a NaN, at element ",
                              static_cast<const std::byte*>(found) - bytes.data()));
    }
  }

  ModelWeights finish() {
    if (config_.tie_word_embeddings) weights_.lm_head = weights_.embed_tokens;
    return std::move(weights_);
  }

 private:
  bool is_streamed(const ExpectedTensor& expected) const {
    return options_.streamed_experts && expected.group == TensorGroup::kRoutedExpert;
  }
  LayerWeights& layer_of(const ExpectedTensor& expected) {
    return weights_.layers[static_cast<size_t>(expected.layer)];
  }
  KdaLayerWeights& kda_of(const ExpectedTensor& expected) {
    return std::get<KdaLayerWeights>(layer_of(expected).attention);
  }
  MlaLayerWeights& mla_of(const ExpectedTensor& expected) {
    return std::get<MlaLayerWeights>(layer_of(expected).attention);
  }
  MlpWeights& mlp_of(const ExpectedTensor& expected) { return std::get<MlpWeights>(layer_of(expected).feed_forward); }
  MoeLayerWeights& moe_of(const ExpectedTensor& expected) {
    return std::get<MoeLayerWeights>(layer_of(expected).feed_forward);
  }
  ExpertWeights& expert_of(const ExpectedTensor& expected) {
    return moe_of(expected).experts[static_cast<size_t>(expected.expert)];
  }

  WeightView* matrix_slot(const ExpectedTensor& e) {
    switch (e.role) {
      case TensorRole::kEmbedTokens: return &weights_.embed_tokens;
      case TensorRole::kLmHead: return &weights_.lm_head;
      case TensorRole::kKdaQProj: return &kda_of(e).q_proj;
      case TensorRole::kKdaKProj: return &kda_of(e).k_proj;
      case TensorRole::kKdaVProj: return &kda_of(e).v_proj;
      case TensorRole::kKdaFAProj: return &kda_of(e).f_a_proj;
      case TensorRole::kKdaFBProj: return &kda_of(e).f_b_proj;
      case TensorRole::kKdaBProj: return &kda_of(e).b_proj;
      case TensorRole::kKdaGProj: return &kda_of(e).g_proj;
      case TensorRole::kKdaGAProj: return &kda_of(e).g_a_proj;
      case TensorRole::kKdaGBProj: return &kda_of(e).g_b_proj;
      case TensorRole::kKdaOProj: return &kda_of(e).o_proj;
      case TensorRole::kMlaQProj: return &mla_of(e).q_proj;
      case TensorRole::kMlaQAProj: return &mla_of(e).q_a_proj;
      case TensorRole::kMlaQBProj: return &mla_of(e).q_b_proj;
      case TensorRole::kMlaKvAProj: return &mla_of(e).kv_a_proj;
      case TensorRole::kMlaKvBProj: return &mla_of(e).kv_b_proj;
      case TensorRole::kMlaGProj: return &mla_of(e).g_proj;
      case TensorRole::kMlaOProj: return &mla_of(e).o_proj;
      case TensorRole::kMlpGateProj: return &mlp_of(e).gate_proj;
      case TensorRole::kMlpUpProj: return &mlp_of(e).up_proj;
      case TensorRole::kMlpDownProj: return &mlp_of(e).down_proj;
      case TensorRole::kRouter: return &moe_of(e).router;
      case TensorRole::kLatentDown: return &moe_of(e).latent_down;
      case TensorRole::kLatentUp: return &moe_of(e).latent_up;
      case TensorRole::kSharedGateProj: return &moe_of(e).shared_experts->gate_proj;
      case TensorRole::kSharedUpProj: return &moe_of(e).shared_experts->up_proj;
      case TensorRole::kSharedDownProj: return &moe_of(e).shared_experts->down_proj;
      case TensorRole::kExpertW1: return &expert_of(e).w1;
      case TensorRole::kExpertW2: return &expert_of(e).w2;
      case TensorRole::kExpertW3: return &expert_of(e).w3;
      default: return nullptr;
    }
  }

  // Conv taps share a slot and are appended; every other slot is filled once.
  std::vector<float>& vector_slot(const ExpectedTensor& e) {
    switch (e.role) {
      case TensorRole::kFinalNorm: return weights_.norm;
      case TensorRole::kOutputAttnResNorm: return weights_.output_attn_res;
      case TensorRole::kInputLayernorm: return layer_of(e).input_layernorm;
      case TensorRole::kPostAttentionLayernorm: return layer_of(e).post_attention_layernorm;
      case TensorRole::kSelfAttentionResNorm: return layer_of(e).self_attention_res;
      case TensorRole::kMlpResNorm: return layer_of(e).mlp_res;
      case TensorRole::kKdaQConv:
      case TensorRole::kKdaKConv:
      case TensorRole::kKdaVConv: return kda_of(e).conv_weight;
      case TensorRole::kKdaDtBias: return kda_of(e).dt_bias;
      case TensorRole::kKdaONorm: return kda_of(e).o_norm;
      case TensorRole::kMlaQALayernorm: return mla_of(e).q_a_layernorm;
      case TensorRole::kMlaKvALayernorm: return mla_of(e).kv_a_layernorm;
      case TensorRole::kRouterBias: return moe_of(e).e_score_correction_bias;
      case TensorRole::kLatentNorm: return moe_of(e).latent_norm;
      default: break;
    }
    check_failed(__FILE__, __LINE__, "role", cat("no slot for ", e.name));
  }

  std::vector<float>* attn_res_proj_slot(const ExpectedTensor& e) {
    switch (e.role) {
      case TensorRole::kOutputAttnResProj: return &weights_.output_attn_res;
      case TensorRole::kSelfAttentionResProj: return &layer_of(e).self_attention_res;
      case TensorRole::kMlpResProj: return &layer_of(e).mlp_res;
      default: return nullptr;
    }
  }

  void widen(const TensorEntry& entry, std::vector<float>& out) const {
    const std::span<const std::byte> bytes = checkpoint_.data(entry);
    switch (format_of(entry.dtype)) {
      case WeightFormat::kBF16: return widen_elements<bf16>(bytes, out);
      case WeightFormat::kF16: return widen_elements<f16>(bytes, out);
      default: return widen_elements<float>(bytes, out);
    }
  }

  WeightView view_of(const ExpectedTensor& expected, const StoredTensor& stored) {
    WeightView view;
    view.rows = expected.shape[0];
    view.cols = expected.shape[1];
    const std::span<const std::byte> bytes = checkpoint_.data(stored.weight);
    view.data = bytes.data();
    if (stored.scale.has_value()) {
      view.format = WeightFormat::kMxfp4;
      view.scale = reinterpret_cast<const uint8_t*>(checkpoint_.data(*stored.scale).data());
      return view;
    }
    view.format = format_of(stored.weight.dtype);
    if (!is_streamed(expected)) realign(view, stored.weight.dtype, weights_);
    return view;
  }

  // The first num_heads elements; the rest is padding and must be exactly zero, or the tensor is something else.
  void bind_a_log(const ExpectedTensor& expected, const TensorEntry& entry, std::vector<std::string>& misshapen) {
    std::vector<float>& a_log = kda_of(expected).a_log;
    widen(entry, a_log);
    const auto heads = static_cast<size_t>(config_.kda_num_heads);
    for (size_t i = heads; i < a_log.size(); ++i) {
      if (a_log[i] == 0.0f) continue;
      misshapen.push_back(cat(entry.name, " (", checkpoint_.shard_name(entry.shard), ") has ", a_log.size(),
                              " elements for num_heads = ", heads, ", expected zeros behind the heads, found ",
                              a_log[i], " at element ", i));
      break;
    }
    a_log.resize(heads);
  }

  // `fold` holds the norm's weight, visited just before; without it (missing) the whole model is refused.
  void fold_attn_res(const TensorEntry& proj, std::vector<float>& fold) const {
    std::vector<float> query;
    widen(proj, query);
    if (query.size() != fold.size()) return;
    for (size_t i = 0; i < fold.size(); ++i) fold[i] *= query[i];
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const BindOptions options_;
  ModelWeights weights_;
  std::vector<TensorEntry> scales_;
  uint64_t scanned_scale_bytes_ = 0;
};

}  // namespace

Result<ModelWeights> bind_model_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                                        const BindOptions& options) {
  Binder binder(checkpoint, config, options);
  CheckpointReport report =
      check_checkpoint(checkpoint, config,
                       [&binder](const ExpectedTensor& expected, const StoredTensor& stored,
                                 std::vector<std::string>& misshapen) { binder.bind(expected, stored, misshapen); });
  binder.check_scales(report.scale_bytes, report.misshapen);
  TANDEM_RETURN_IF_ERROR(report.to_status(checkpoint.dir()));
  if (options.report != nullptr) *options.report = std::move(report);
  return binder.finish();
}

Status keep_experts(const Checkpoint& checkpoint, const ModelConfig& config, const CheckpointReport& report,
                    ModelWeights& weights) {
  const bool scans = report.scale_bytes < kMaxScannedScaleBytes;
  for (LayerWeights& layer : weights.layers) {
    auto* moe = std::get_if<MoeLayerWeights>(&layer.feed_forward);
    if (moe == nullptr) continue;
    for (ExpertWeights& expert : moe->experts) {
      for (WeightView* view : {&expert.w1, &expert.w2, &expert.w3}) {
        // Binding again says which tensor it is.
        if (scans && has_nan_scale(*view)) TANDEM_RETURN_IF_ERROR(bind_model_weights(checkpoint, config).status());
        realign(*view, dtype_of(view->format), weights);
      }
    }
  }
  return Status::ok();
}

}  // namespace tandem

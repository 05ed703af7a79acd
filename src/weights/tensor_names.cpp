#include "weights/tensor_names.h"

#include <array>
#include <charconv>
#include <initializer_list>
#include <string>

namespace tandem {
namespace {

constexpr int64_t kALogPadding = 128;  // K3 stores A_log padded with zeros to a multiple of this
constexpr int64_t kScaleGroup = 32;    // columns that share one MXFP4 scale byte
constexpr int64_t kMaxRank = 4;

// Builds every name in one reused buffer: a scope is a prefix of it, a tensor is a suffix.
class Walk {
 public:
  Walk(const ModelConfig& config, FunctionRef<void(const ExpectedTensor&)> visit) : config_(config), visit_(visit) {
    name_.reserve(128);
  }

  void run() {
    const std::string_view root = is_k3() ? "language_model.model." : "model.";
    const std::string_view head = is_k3() ? "language_model.lm_head.weight" : "lm_head.weight";
    name_ = root;
    matrix("embed_tokens.weight", config_.vocab_size, config_.hidden_size, TensorGroup::kEmbedding,
           TensorRole::kEmbedTokens);
    for (int64_t l = 0; l < config_.num_hidden_layers; ++l) {
      name_ = root;
      text_layer(l);
    }
    name_ = root;
    if (config_.attn_res_mode != AttnResMode::kNone) {
      attn_res("output_attn_res_", TensorRole::kOutputAttnResNorm, TensorRole::kOutputAttnResProj);
    }
    vector("norm.weight", config_.hidden_size, TensorGroup::kNorm, TensorRole::kFinalNorm);
    name_.clear();
    if (!config_.tie_word_embeddings) {
      matrix(head, config_.vocab_size, config_.hidden_size, TensorGroup::kHead, TensorRole::kLmHead);
    }
    for (int64_t i = 0; i < config_.num_nextn_predict_layers; ++i) {
      name_ = root;
      mtp_layer(config_.num_hidden_layers + i);
    }
    if (config_.vision.has_value()) vision(*config_.vision);
  }

 private:
  // Restores the name to the length it had, at the end of a block.
  class Scope {
   public:
    explicit Scope(Walk& walk, std::string_view part) : walk_(walk), length_(walk.name_.size()) { walk.name_ += part; }
    Scope(Walk& walk, std::string_view part, int64_t index) : Scope(walk, part) {
      std::array<char, 24> digits;
      const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), index);
      (void)error;  // 24 characters hold every int64
      walk.name_.append(digits.data(), end);
      walk.name_ += '.';
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { walk_.name_.resize(length_); }

   private:
    Walk& walk_;
    size_t length_;
  };

  struct Traits {
    ReleasedForm released = ReleasedForm::kBf16;
    ShapeRule shape_rule = ShapeRule::kExact;
    bool quantisable = false;
  };

  bool is_k3() const { return config_.family == ModelFamily::kKimiK3; }
  // Small tensors that K3 keeps in F32 and Kimi-Linear in BF16.
  ReleasedForm k3_f32() const { return is_k3() ? ReleasedForm::kF32 : ReleasedForm::kBf16; }

  void emit(std::string_view suffix, std::initializer_list<int64_t> shape, TensorGroup group, TensorRole role,
            Traits traits) {
    const Scope scope(*this, suffix);
    std::array<int64_t, kMaxRank> extents{};
    size_t rank = 0;
    for (const int64_t extent : shape) extents[rank++] = extent;
    ExpectedTensor tensor;
    tensor.name = name_;
    tensor.shape = {extents.data(), rank};
    tensor.released = traits.released;
    tensor.shape_rule = traits.shape_rule;
    tensor.quantisable = traits.quantisable;
    tensor.layer = layer_;
    tensor.expert = expert_;
    tensor.optional = in_mtp_;
    tensor.run = !in_mtp_ && group != TensorGroup::kVision && group != TensorGroup::kProjector;
    tensor.group = in_mtp_ ? TensorGroup::kMtp : group;
    tensor.role = role;
    visit_(tensor);
  }
  void matrix(std::string_view suffix, int64_t rows, int64_t cols, TensorGroup group, TensorRole role) {
    emit(suffix, {rows, cols}, group, role, {});
  }
  void vector(std::string_view suffix, int64_t size, TensorGroup group, TensorRole role,
              ReleasedForm released = ReleasedForm::kBf16) {
    emit(suffix, {size}, group, role, {.released = released});
  }

  void attn_res(std::string_view prefix, TensorRole norm, TensorRole proj) {
    const Scope scope(*this, prefix);
    vector("norm.weight", config_.hidden_size, TensorGroup::kAttnRes, norm);
    matrix("proj.weight", 1, config_.hidden_size, TensorGroup::kAttnRes, proj);
  }

  void text_layer(int64_t l) {
    layer_ = l;
    const Scope scope(*this, "layers.", l);
    if (config_.attn_res_mode != AttnResMode::kNone) {
      attn_res("self_attention_res_", TensorRole::kSelfAttentionResNorm, TensorRole::kSelfAttentionResProj);
    }
    vector("input_layernorm.weight", config_.hidden_size, TensorGroup::kNorm, TensorRole::kInputLayernorm);
    if (config_.kinds[static_cast<size_t>(l)] == LayerKind::kKda) {
      kda();
    } else {
      mla();
    }
    if (config_.attn_res_mode != AttnResMode::kNone) {
      attn_res("mlp_res_", TensorRole::kMlpResNorm, TensorRole::kMlpResProj);
    }
    feed_forward(l);
    layer_ = -1;
  }

  void feed_forward(int64_t l) {
    vector("post_attention_layernorm.weight", config_.hidden_size, TensorGroup::kNorm,
           TensorRole::kPostAttentionLayernorm);
    if (config_.is_moe(l)) {
      moe();
    } else {
      mlp("mlp.", config_.intermediate_size, TensorGroup::kDenseMlp,
          {TensorRole::kMlpGateProj, TensorRole::kMlpUpProj, TensorRole::kMlpDownProj});
    }
  }

  void kda() {
    const Scope scope(*this, "self_attn.");
    const TensorGroup group = TensorGroup::kKda;
    const int64_t D = config_.hidden_size;
    const int64_t H = config_.kda_num_heads;
    const int64_t d = config_.kda_head_dim;
    const int64_t P = config_.kda_projection_size();
    const int64_t W = config_.short_conv_kernel_size;
    matrix("q_proj.weight", P, D, group, TensorRole::kKdaQProj);
    matrix("k_proj.weight", P, D, group, TensorRole::kKdaKProj);
    matrix("v_proj.weight", P, D, group, TensorRole::kKdaVProj);
    emit("q_conv1d.weight", {P, 1, W}, group, TensorRole::kKdaQConv, {.released = k3_f32()});
    emit("k_conv1d.weight", {P, 1, W}, group, TensorRole::kKdaKConv, {.released = k3_f32()});
    emit("v_conv1d.weight", {P, 1, W}, group, TensorRole::kKdaVConv, {.released = k3_f32()});
    matrix("f_a_proj.weight", d, D, group, TensorRole::kKdaFAProj);
    matrix("f_b_proj.weight", P, d, group, TensorRole::kKdaFBProj);
    const Traits a_log{.released = ReleasedForm::kF32, .shape_rule = ShapeRule::kALog};
    if (is_k3()) {
      const int64_t padded = (H + kALogPadding - 1) / kALogPadding * kALogPadding;
      emit("A_log", {padded}, group, TensorRole::kKdaALog, a_log);
    } else {
      emit("A_log", {1, 1, H, 1}, group, TensorRole::kKdaALog, a_log);
    }
    vector("dt_bias", P, group, TensorRole::kKdaDtBias, ReleasedForm::kF32);
    matrix("b_proj.weight", H, D, group, TensorRole::kKdaBProj);
    if (config_.use_full_rank_gate) {
      matrix("g_proj.weight", P, D, group, TensorRole::kKdaGProj);
    } else {
      matrix("g_a_proj.weight", d, D, group, TensorRole::kKdaGAProj);
      matrix("g_b_proj.weight", P, d, group, TensorRole::kKdaGBProj);
    }
    vector("o_norm.weight", d, group, TensorRole::kKdaONorm, k3_f32());
    matrix("o_proj.weight", D, P, group, TensorRole::kKdaOProj);
  }

  void mla() {
    const Scope scope(*this, "self_attn.");
    const TensorGroup group = TensorGroup::kMla;
    const int64_t D = config_.hidden_size;
    const int64_t H = config_.num_attention_heads;
    const int64_t r = config_.kv_lora_rank;
    const int64_t query_size = H * config_.qk_head_dim();
    const int64_t value_size = H * config_.v_head_dim;
    if (config_.q_lora_rank.has_value()) {
      const int64_t rq = *config_.q_lora_rank;
      matrix("q_a_proj.weight", rq, D, group, TensorRole::kMlaQAProj);
      vector("q_a_layernorm.weight", rq, group, TensorRole::kMlaQALayernorm);
      matrix("q_b_proj.weight", query_size, rq, group, TensorRole::kMlaQBProj);
    } else {
      matrix("q_proj.weight", query_size, D, group, TensorRole::kMlaQProj);
    }
    matrix("kv_a_proj_with_mqa.weight", config_.mla_latent_width(), D, group, TensorRole::kMlaKvAProj);
    vector("kv_a_layernorm.weight", r, group, TensorRole::kMlaKvALayernorm);
    matrix("kv_b_proj.weight", H * (config_.qk_nope_head_dim + config_.v_head_dim), r, group, TensorRole::kMlaKvBProj);
    if (config_.mla_use_output_gate) matrix("g_proj.weight", value_size, D, group, TensorRole::kMlaGProj);
    matrix("o_proj.weight", D, value_size, group, TensorRole::kMlaOProj);
  }

  struct MlpRoles {
    TensorRole gate, up, down;
  };
  void mlp(std::string_view prefix, int64_t width, TensorGroup group, MlpRoles roles) {
    const Scope scope(*this, prefix);
    matrix("gate_proj.weight", width, config_.hidden_size, group, roles.gate);
    matrix("up_proj.weight", width, config_.hidden_size, group, roles.up);
    matrix("down_proj.weight", config_.hidden_size, width, group, roles.down);
  }

  void moe() {
    const Scope scope(*this, "block_sparse_moe.");
    const int64_t D = config_.hidden_size;
    const int64_t E = config_.num_experts;
    matrix("gate.weight", E, D, TensorGroup::kRouter, TensorRole::kRouter);
    vector("gate.e_score_correction_bias", E, TensorGroup::kRouter, TensorRole::kRouterBias, k3_f32());
    if (config_.has_latent_experts()) {
      const int64_t latent = config_.expert_input_size();
      matrix("routed_expert_down_proj.weight", latent, D, TensorGroup::kLatent, TensorRole::kLatentDown);
      if (config_.latent_moe_use_norm) {
        vector("routed_expert_norm.weight", latent, TensorGroup::kLatent, TensorRole::kLatentNorm);
      }
      matrix("routed_expert_up_proj.weight", D, latent, TensorGroup::kLatent, TensorRole::kLatentUp);
    }
    if (config_.num_shared_experts > 0) {
      mlp("shared_experts.", config_.moe_intermediate_size * config_.num_shared_experts, TensorGroup::kSharedExpert,
          {TensorRole::kSharedGateProj, TensorRole::kSharedUpProj, TensorRole::kSharedDownProj});
    }
    for (expert_ = 0; expert_ < E; ++expert_) {
      const Scope expert_scope(*this, "experts.", expert_);
      const int64_t I = config_.moe_intermediate_size;
      const int64_t Dl = config_.expert_input_size();
      expert_matrix("w1.weight", I, Dl, TensorRole::kExpertW1);
      expert_matrix("w2.weight", Dl, I, TensorRole::kExpertW2);
      expert_matrix("w3.weight", I, Dl, TensorRole::kExpertW3);
    }
    expert_ = -1;
  }
  void expert_matrix(std::string_view suffix, int64_t rows, int64_t cols, TensorRole role) {
    const bool quantisable = cols % kScaleGroup == 0;
    const bool packed = quantisable && config_.declares_mxfp4;
    emit(suffix, {rows, cols}, TensorGroup::kRoutedExpert, role,
         {.released = packed ? ReleasedForm::kMxfp4 : ReleasedForm::kBf16, .quantisable = quantisable});
  }

  // One multi-token-prediction layer: two input norms, their projection, an ordinary MLA + feed-forward block without
  // AttnRes, and its own head.
  void mtp_layer(int64_t l) {
    in_mtp_ = true;
    layer_ = l;
    const Scope scope(*this, "layers.", l);
    const int64_t D = config_.hidden_size;
    const TensorGroup group = TensorGroup::kMtp;
    matrix("embed_tokens.weight", config_.vocab_size, D, group, TensorRole::kEmbedTokens);
    vector("enorm.weight", D, group, TensorRole::kMtpEmbeddingNorm);
    vector("hnorm.weight", D, group, TensorRole::kMtpHiddenNorm);
    matrix("eh_proj.weight", D, 2 * D, group, TensorRole::kMtpProj);
    vector("input_layernorm.weight", D, group, TensorRole::kInputLayernorm);
    if (config_.kv_lora_rank > 0) mla();
    feed_forward(l);
    vector("shared_head.norm.weight", D, group, TensorRole::kFinalNorm);
    matrix("shared_head.head.weight", config_.vocab_size, D, group, TensorRole::kLmHead);
    layer_ = -1;
    in_mtp_ = false;
  }

  void vision(const VisionConfig& v) {
    name_ = "vision_tower.";
    const TensorGroup group = TensorGroup::kVision;
    const TensorRole role = TensorRole::kNotRun;
    const int64_t Dv = v.vt_hidden_size;
    emit("patch_embed.proj.weight", {Dv, 3, v.patch_size, v.patch_size}, group, role, {});
    emit("patch_embed.pos_emb.weight", {v.init_pos_emb_height, v.init_pos_emb_width, Dv}, group, role, {});
    for (int64_t i = 0; i < v.vt_num_hidden_layers; ++i) {
      const Scope scope(*this, "encoder.blocks.", i);
      vector("norm0.weight", Dv, group, role);
      vector("norm1.weight", Dv, group, role);
      matrix("wqkv.weight", 3 * v.qkv_hidden_size, Dv, group, role);
      matrix("wo.weight", Dv, v.qkv_hidden_size, group, role);
      matrix("mlp.fc0.weight", v.vt_intermediate_size, Dv, group, role);
      matrix("mlp.fc1.weight", Dv, v.vt_intermediate_size, group, role);
    }
    vector("encoder.final_layernorm.weight", Dv, group, role);

    name_ = "mm_projector.";
    const int64_t merged = v.mm_hidden_size * v.merge_height * v.merge_width;
    matrix("proj.0.weight", merged, merged, TensorGroup::kProjector, role);
    matrix("proj.2.weight", config_.hidden_size, merged, TensorGroup::kProjector, role);
    vector("post_norm.weight", config_.hidden_size, TensorGroup::kProjector, role);
  }

  const ModelConfig& config_;
  FunctionRef<void(const ExpectedTensor&)> visit_;
  std::string name_;
  int64_t layer_ = -1;
  int64_t expert_ = -1;
  bool in_mtp_ = false;
};

}  // namespace

std::string_view tensor_group_name(TensorGroup group) {
  switch (group) {
    case TensorGroup::kEmbedding: return "embedding";
    case TensorGroup::kHead: return "head";
    case TensorGroup::kNorm: return "norm";
    case TensorGroup::kAttnRes: return "attn_res";
    case TensorGroup::kKda: return "kda";
    case TensorGroup::kMla: return "mla";
    case TensorGroup::kDenseMlp: return "dense_mlp";
    case TensorGroup::kRouter: return "router";
    case TensorGroup::kLatent: return "latent";
    case TensorGroup::kSharedExpert: return "shared_expert";
    case TensorGroup::kRoutedExpert: return "routed_expert";
    case TensorGroup::kVision: return "vision";
    case TensorGroup::kProjector: return "projector";
    case TensorGroup::kMtp: return "mtp";
  }
  return "?";
}

int64_t ExpectedTensor::released_bytes() const {
  const int64_t elements = num_elements();
  switch (released) {
    case ReleasedForm::kBf16: return elements * 2;
    case ReleasedForm::kF32: return elements * 4;
    case ReleasedForm::kMxfp4: return elements / 2 + elements / kScaleGroup;
  }
  return 0;
}

void for_each_expected_tensor(const ModelConfig& config, FunctionRef<void(const ExpectedTensor&)> visit) {
  Walk(config, visit).run();
}

}  // namespace tandem

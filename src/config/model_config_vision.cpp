// The vision tower's fields (model.md §1.4) and their refusals.
#include "base/cat.h"
#include "config/model_config_parts.h"

namespace tandem {
namespace {

// Choices of the released tower that have one implementation; a file that states another is refused.
void check_choices(const JsonFields& vision) {
  vision.expect_text("pos_emb_type", "divided_fixed");
  vision.expect_text("pos_emb_interpolation_mode", "bilinear");
  vision.expect_text("norm_type", "rmsnorm");
  vision.expect_text("mlp_type", "mlp2");
  vision.expect_text("activation_func", "gelu_pytorch_tanh");
  vision.expect_text("merge_type", "sd2_tpool");
  vision.expect_text("mm_projector_type", "patchmergerv2");
  vision.expect_text("projector_hidden_act", "gelu");
  for (const std::string_view key : {"attn_bias", "linear_bias", "patch_embed_proj_bias"}) {
    vision.expect_boolean(key, false);
  }
}

}  // namespace

void read_vision_config(const JsonFields& vision, ModelConfig& config) {
  VisionConfig v;
  const IntRange width{1, int64_t{1} << 16};
  const IntRange grid{1, 1024};
  v.patch_size = vision.integer("patch_size", grid).value_or(v.patch_size);
  v.init_pos_emb_height = vision.integer("init_pos_emb_height", grid).value_or(v.init_pos_emb_height);
  v.init_pos_emb_width = vision.integer("init_pos_emb_width", grid).value_or(v.init_pos_emb_width);
  v.init_pos_emb_time = vision.integer("init_pos_emb_time", grid).value_or(v.init_pos_emb_time);
  v.vt_hidden_size = vision.integer("vt_hidden_size", width).value_or(v.vt_hidden_size);
  v.vt_intermediate_size = vision.integer("vt_intermediate_size", width).value_or(v.vt_intermediate_size);
  v.vt_num_attention_heads = vision.integer("vt_num_attention_heads", grid).value_or(v.vt_num_attention_heads);
  v.vt_num_hidden_layers = vision.integer("vt_num_hidden_layers", grid).value_or(v.vt_num_hidden_layers);
  v.qkv_hidden_size = vision.integer("qkv_hidden_size", width).value_or(v.qkv_hidden_size);
  v.mm_hidden_size = vision.integer("mm_hidden_size", width).value_or(v.vt_hidden_size);
  v.projector_ln_eps = vision.positive_number("projector_ln_eps").value_or(v.projector_ln_eps);
  check_choices(vision);

  if (v.qkv_hidden_size % v.vt_num_attention_heads != 0) {
    vision.problem("qkv_hidden_size", cat("a multiple of vt_num_attention_heads = ", v.vt_num_attention_heads),
                   cat(v.qkv_hidden_size));
  } else if (const int64_t head_dim = v.qkv_hidden_size / v.vt_num_attention_heads; head_dim % 4 != 0) {
    vision.problem("qkv_hidden_size", "a head width that is a multiple of 4 (2-D rotary pairs)",
                   cat(v.qkv_hidden_size, " / ", v.vt_num_attention_heads, " = ", head_dim));
  }
  if (v.vt_hidden_size % 2 != 0) {
    vision.problem("vt_hidden_size", "an even width (sine and cosine halves of the frame rows)", cat(v.vt_hidden_size));
  }
  if (v.mm_hidden_size != v.vt_hidden_size) {
    vision.problem("mm_hidden_size", cat("vt_hidden_size = ", v.vt_hidden_size), cat(v.mm_hidden_size));
  }
  const auto merge = vision.integer_list("merge_kernel_size", grid);
  if (merge.has_value() && *merge != std::vector<int64_t>{2, 2}) {
    std::string found = "[";
    for (const int64_t extent : *merge) found += cat(found.size() > 1 ? ", " : "", extent);
    vision.problem("merge_kernel_size", "[2, 2]", found + "]");
  }
  const auto text_width = vision.integer("text_hidden_size", {1, kMaxWidth});
  if (text_width.has_value() && config.hidden_size > 0 && *text_width != config.hidden_size) {
    vision.problem("text_hidden_size", cat("text_config.hidden_size = ", config.hidden_size));
  }
  config.vision = v;
}

}  // namespace tandem

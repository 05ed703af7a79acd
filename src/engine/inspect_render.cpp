// The two forms of an InspectReport: lines for a person, one JSON document for a program.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "base/cat.h"
#include "engine/inspect.h"
#include "tensor/dtype.h"
#include "weights/tensor_names.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLabelWidth = 20;

std::string_view family_name(ModelFamily family) {
  return family == ModelFamily::kKimiK3 ? "KimiK3ForConditionalGeneration" : "KimiLinearForCausalLM";
}

std::string_view attn_res_name(AttnResMode mode) {
  switch (mode) {
    case AttnResMode::kNone: return "none";
    case AttnResMode::kBlock: return "block";
    case AttnResMode::kFull: return "full";
  }
  return "none";
}

// 1560860324864 as 1,560,860,324,864.
std::string grouped(uint64_t n) {
  std::string text = cat(n);
  for (size_t at = text.size(); at > 3;) {
    at -= 3;
    text.insert(at, 1, ',');
  }
  return text;
}
std::string grouped(int64_t n) { return grouped(static_cast<uint64_t>(n)); }

std::string padded_left(std::string text, size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

class Lines {
 public:
  template <class... Pieces>
  void row(std::string_view label, const Pieces&... pieces) {
    text_ += label;
    text_.append(label.size() < kLabelWidth ? kLabelWidth - label.size() : 1, ' ');
    text_ += cat(pieces..., '\n');
  }
  void line(std::string_view line) { text_ += cat(line, '\n'); }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

void put_shapes(Lines& out, const ModelConfig& c) {
  out.row("vocabulary", c.vocab_size, c.tie_word_embeddings ? ", tied" : "");
  out.row("hidden size", c.hidden_size);
  if (c.num_layers_of(LayerKind::kKda) > 0) {
    out.row("KDA", c.kda_num_heads, " heads × ", c.kda_head_dim, ", convolution ", c.short_conv_kernel_size,
            c.gate_lower_bound ? cat(", decay gate bounded at ", *c.gate_lower_bound) : ", softplus decay gate",
            c.use_full_rank_gate ? ", full-rank output gate" : ", low-rank output gate");
  }
  if (c.num_layers_of(LayerKind::kMla) > 0) {
    out.row("MLA", c.num_attention_heads, " heads, query ",
            c.q_lora_rank ? cat("rank ", *c.q_lora_rank) : std::string("direct"), ", latent ", c.kv_lora_rank, " + ",
            c.qk_rope_head_dim, ", head dims ", c.qk_nope_head_dim, " + ", c.qk_rope_head_dim, " / ", c.v_head_dim,
            c.mla_use_output_gate ? ", output gate" : "");
  }
  out.row("residuals", c.attn_res_mode == AttnResMode::kNone ? std::string("plain")
                       : c.attn_res_mode == AttnResMode::kBlock
                           ? cat("AttnRes, blocks of ", c.attn_res_block_size, " layers")
                           : std::string("Full AttnRes"));
  out.row("dense MLP", c.intermediate_size, c.hidden_act == HiddenAct::kSitu ? ", SiTU" : ", SwiGLU");
  if (c.num_experts > 0) {
    out.row("MoE", c.num_experts, " experts, ", c.num_experts_per_token, " a token, ", c.num_shared_experts,
            " shared, width ", c.moe_intermediate_size, ", input ", c.expert_input_size(),
            c.has_latent_experts() ? " (latent)" : "");
  }
}

// One letter a layer: K KDA, M MLA; lower case where the feed-forward is dense.
void put_layer_map(Lines& out, const ModelConfig& c) {
  constexpr int64_t kLettersInGroup = 4;
  constexpr int64_t kLettersInLine = 48;
  int64_t dense = 0;
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) dense += c.is_moe(l) ? 0 : 1;
  out.row("layers", c.num_hidden_layers, ": ", c.num_layers_of(LayerKind::kKda), " KDA (K), ",
          c.num_layers_of(LayerKind::kMla), " MLA (M); ", dense, " dense (lower case), ", c.num_hidden_layers - dense,
          " MoE");
  for (int64_t begin = 0; begin < c.num_hidden_layers; begin += kLettersInLine) {
    std::string letters;
    for (int64_t l = begin; l < std::min(begin + kLettersInLine, c.num_hidden_layers); ++l) {
      if (l > begin && (l - begin) % kLettersInGroup == 0) letters += ' ';
      const bool kda = c.kinds[static_cast<size_t>(l)] == LayerKind::kKda;
      letters += c.is_moe(l) ? (kda ? 'K' : 'M') : (kda ? 'k' : 'm');
    }
    out.row(cat("  from ", begin), letters);
  }
}

void put_cache(Lines& out, const CacheLayout& cache) {
  if (cache.num_kda_layers() > 0) {
    out.row("cache, a KDA layer", "recurrent [", cache.kda_heads, ", ", cache.kda_head_dim, ", ", cache.kda_head_dim,
            "] f32 ", grouped(cache.recurrent_bytes()), " bytes; conv [", cache.conv_channels, ", ", cache.conv_rows,
            "] f32 ", grouped(cache.conv_bytes()), " bytes");
  }
  if (cache.num_mla_layers() > 0) {
    out.row("cache, an MLA layer", "latent [", cache.latent_width, "] f32 a token, ", grouped(cache.latent_row_bytes()),
            " bytes");
  }
  out.row("cache, all layers", grouped(cache.state_bytes()), " bytes a sequence + ",
          grouped(cache.latent_bytes_per_token()), " bytes a token");
}

void put_totals(Lines& out, const InspectReport& report) {
  out.row("tensors", grouped(report.num_tensors),
          report.has_checkpoint ? cat(" in ", report.num_shards, report.num_shards == 1 ? " file" : " files")
                                : std::string(" as released (no checkpoint was given)"));
  out.row("text parameters", grouped(report.tensors.text.parameters));
  out.row("vision parameters", grouped(report.tensors.vision.parameters));
  if (report.tensors.mtp.tensors > 0) out.row("MTP parameters", grouped(report.tensors.mtp.parameters));
  out.row("bytes", grouped(report.total_bytes));
  const auto line = [&out](std::string_view name, const TensorTotals& totals) {
    if (totals.tensors == 0) return;
    out.row(cat("  ", name), padded_left(grouped(totals.bytes), 20), " bytes", padded_left(grouped(totals.tensors), 12),
            " tensors");
  };
  for (int g = 0; g < kNumTensorGroups; ++g) {
    line(tensor_group_name(static_cast<TensorGroup>(g)), report.tensors.by_group[static_cast<size_t>(g)]);
  }
  for (int d = 0; d < kNumDTypes; ++d) {
    line(dtype_name(static_cast<DType>(d)), report.tensors.by_dtype[static_cast<size_t>(d)]);
  }
}

Json shapes_json(const ModelConfig& c) {
  const auto optional = [](const auto& value) { return value.has_value() ? Json(*value) : Json(nullptr); };
  return {{"vocab_size", c.vocab_size},
          {"hidden_size", c.hidden_size},
          {"num_hidden_layers", c.num_hidden_layers},
          {"intermediate_size", c.intermediate_size},
          {"hidden_act", c.hidden_act == HiddenAct::kSitu ? "situ" : "silu"},
          {"kda_num_heads", c.kda_num_heads},
          {"kda_head_dim", c.kda_head_dim},
          {"short_conv_kernel_size", c.short_conv_kernel_size},
          {"gate_lower_bound", optional(c.gate_lower_bound)},
          {"use_full_rank_gate", c.use_full_rank_gate},
          {"num_attention_heads", c.num_attention_heads},
          {"q_lora_rank", optional(c.q_lora_rank)},
          {"kv_lora_rank", c.kv_lora_rank},
          {"qk_nope_head_dim", c.qk_nope_head_dim},
          {"qk_rope_head_dim", c.qk_rope_head_dim},
          {"v_head_dim", c.v_head_dim},
          {"mla_use_output_gate", c.mla_use_output_gate},
          {"num_experts", c.num_experts},
          {"num_experts_per_token", c.num_experts_per_token},
          {"num_shared_experts", c.num_shared_experts},
          {"moe_intermediate_size", c.moe_intermediate_size},
          {"routed_expert_hidden_size", optional(c.routed_expert_hidden_size)},
          {"attn_res_mode", attn_res_name(c.attn_res_mode)},
          {"attn_res_block_size", c.attn_res_block_size},
          {"max_position_embeddings", optional(c.max_position_embeddings)},
          {"tie_word_embeddings", c.tie_word_embeddings},
          {"num_nextn_predict_layers", c.num_nextn_predict_layers}};
}

Json layers_json(const InspectReport& report) {
  const ModelConfig& c = report.config;
  const CacheLayout& cache = report.cache;
  Json layers = Json::array();
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const bool kda = c.kinds[static_cast<size_t>(l)] == LayerKind::kKda;
    Json layer = {{"layer", l}, {"attention", kda ? "kda" : "mla"}, {"feed_forward", c.is_moe(l) ? "moe" : "dense"}};
    if (kda) {
      layer["recurrent"] = {cache.kda_heads, cache.kda_head_dim, cache.kda_head_dim};
      layer["conv"] = {cache.conv_channels, cache.conv_rows};
    } else {
      layer["latent"] = {cache.latent_width};
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

Json cache_json(const CacheLayout& cache) {
  Json out = {{"dtype", "F32"}, {"kda", nullptr}, {"mla", nullptr}};
  if (cache.num_kda_layers() > 0) {
    out["kda"] = {{"layers", cache.num_kda_layers()},
                  {"recurrent", {cache.kda_heads, cache.kda_head_dim, cache.kda_head_dim}},
                  {"conv", {cache.conv_channels, cache.conv_rows}},
                  {"recurrent_bytes", cache.recurrent_bytes()},
                  {"conv_bytes", cache.conv_bytes()}};
  }
  if (cache.num_mla_layers() > 0) {
    out["mla"] = {{"layers", cache.num_mla_layers()},
                  {"latent_width", cache.latent_width},
                  {"bytes_per_token", cache.latent_row_bytes()}};
  }
  out["bytes_per_sequence"] = cache.state_bytes();
  out["bytes_per_token"] = cache.latent_bytes_per_token();
  return out;
}

template <size_t N, class NameOf>
Json bytes_json(const std::array<TensorTotals, N>& rows, NameOf name_of) {
  Json out = Json::object();
  for (size_t i = 0; i < N; ++i) {
    if (rows[i].tensors > 0) out[std::string(name_of(i))] = rows[i].bytes;
  }
  return out;
}

}  // namespace

std::string inspect_text(const InspectReport& report) {
  Lines out;
  out.row("model", report.model);
  out.row("family", family_name(report.config.family));
  put_layer_map(out, report.config);
  put_shapes(out, report.config);
  put_cache(out, report.cache);
  put_totals(out, report);
  if (report.has_checkpoint) {
    out.row("missing", report.tensors.missing.size());
    out.row("unknown", report.tensors.unknown.size());
    out.row("misshapen", report.tensors.misshapen.size());
  }
  return out.take();
}

std::string inspect_json(const InspectReport& report) {
  Json unknown = Json::array();
  Json unknown_shards = Json::array();
  for (const auto& tensor : report.tensors.unknown) {
    unknown.push_back(tensor.name);
    unknown_shards.push_back(tensor.shard);
  }
  const auto group_name = [](size_t i) { return tensor_group_name(static_cast<TensorGroup>(i)); };
  const auto type_name = [](size_t i) { return dtype_name(static_cast<DType>(i)); };
  const Json document = {{"model", report.model},
                         {"family", family_name(report.config.family)},
                         {"source", report.has_checkpoint ? "checkpoint" : "config"},
                         {"num_layers", report.config.num_hidden_layers},
                         {"num_kda_layers", report.config.num_layers_of(LayerKind::kKda)},
                         {"num_mla_layers", report.config.num_layers_of(LayerKind::kMla)},
                         {"shapes", shapes_json(report.config)},
                         {"layers", layers_json(report)},
                         {"cache", cache_json(report.cache)},
                         {"num_shards", report.num_shards},
                         {"num_tensors", report.num_tensors},
                         {"text_parameters", report.tensors.text.parameters},
                         {"vision_parameters", report.tensors.vision.parameters},
                         {"mtp_parameters", report.tensors.mtp.parameters},
                         {"total_bytes", report.total_bytes},
                         {"bytes_by_group", bytes_json(report.tensors.by_group, group_name)},
                         {"bytes_by_dtype", bytes_json(report.tensors.by_dtype, type_name)},
                         {"missing", report.tensors.missing},
                         {"unknown", std::move(unknown)},
                         {"unknown_shards", std::move(unknown_shards)},
                         {"misshapen", report.tensors.misshapen}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tandem

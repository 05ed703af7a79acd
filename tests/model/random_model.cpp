#include "model/random_model.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <random>

#include "base/cat.h"
#include "weights/random_init.h"
#include "weights/safetensors_writer.h"

namespace tandem::test {
namespace {

std::string list_of(const std::vector<int64_t>& values) {
  std::string text = "[";
  for (const int64_t value : values) text += cat(text.size() > 1 ? "," : "", value);
  return text + "]";
}

std::string flag(bool value) { return value ? "true" : "false"; }

std::vector<std::byte> converted(std::span<const std::byte> bytes, DType from, DType to) {
  const auto size = static_cast<size_t>(dtype_size(from));
  std::vector<std::byte> out(bytes.size() / size * static_cast<size_t>(dtype_size(to)));
  std::byte* next = out.data();
  for (size_t at = 0; at < bytes.size(); at += size) {
    float value = 0.f;
    if (from == DType::kBF16) {
      bf16 stored;
      std::memcpy(&stored, &bytes[at], sizeof(stored));
      value = to_f32(stored);
    } else {
      std::memcpy(&value, &bytes[at], sizeof(value));
    }
    const f16 half = to_f16(value);
    if (to == DType::kF16) std::memcpy(next, &half, sizeof(half));
    if (to == DType::kF32) std::memcpy(next, &value, sizeof(value));
    next += dtype_size(to);
  }
  return out;
}

std::string vision_json(int64_t hidden) {
  return cat(R"(,"vision_config":{"init_pos_emb_height":4,"init_pos_emb_width":4,"vt_hidden_size":16,)",
             R"("vt_intermediate_size":24,"vt_num_attention_heads":2,"vt_num_hidden_layers":2,"qkv_hidden_size":16,)",
             R"("mm_hidden_size":16,"text_hidden_size":)", hidden, "}");
}

// Stores every BF16 and F32 tensor of the folder's one file as `stored`; MXFP4 stays.
void convert_floats(const std::string& dir, DType stored) {
  const auto checkpoint = Checkpoint::open(dir);
  TANDEM_CHECK(checkpoint.is_ok(), checkpoint.status().message());
  TANDEM_CHECK(checkpoint.value().num_shards() == 1, "one shard expected");
  std::vector<std::vector<std::byte>> data;
  std::vector<TensorSpec> specs;
  for (int64_t i = 0; i < checkpoint.value().num_tensors(); ++i) {
    const TensorEntry entry = checkpoint.value().tensor(i);
    const std::span<const std::byte> bytes = checkpoint.value().data(entry);
    const bool is_float = entry.dtype == DType::kBF16 || entry.dtype == DType::kF32;
    specs.push_back({entry.name, is_float ? stored : entry.dtype, entry.shape});
    data.emplace_back(bytes.begin(), bytes.end());
    if (is_float) data.back() = converted(bytes, entry.dtype, stored);
  }
  std::vector<TensorToWrite> tensors;
  for (size_t i = 0; i < specs.size(); ++i) tensors.push_back({specs[i], data[i]});
  const std::string path = cat(dir, "/", checkpoint.value().shard_name(0));
  const Status written = write_safetensors(cat(path, ".new"), tensors);
  TANDEM_CHECK(written.is_ok(), written.message());
  std::filesystem::rename(cat(path, ".new"), path);
  // An index would state the old size; one file needs none.
  std::filesystem::rename(path, cat(dir, "/model.safetensors"));
  std::filesystem::remove(cat(dir, "/model.safetensors.index.json"));
}

}  // namespace

std::string SmallShape::json() const {
  std::vector<int64_t> kda, mla;
  for (int64_t l = 0; l < layers; ++l) {
    const bool is_mla = std::find(mla_layers.begin(), mla_layers.end(), l) != mla_layers.end();
    (is_mla ? mla : kda).push_back(l + 1);
  }
  std::string text = cat(R"("model_type":"kimi_linear","vocab_size":)", vocab, R"(,"hidden_size":)", hidden,
                         R"(,"num_hidden_layers":)", layers, R"(,"num_attention_heads":)", mla_heads,
                         R"(,"num_key_value_heads":)", mla_heads, R"(,"intermediate_size":)", 2 * hidden,
                         R"(,"rms_norm_eps":1e-5,"mla_use_nope":true,"kv_lora_rank":)", rank, R"(,"qk_nope_head_dim":)",
                         nope, R"(,"qk_rope_head_dim":)", rope, R"(,"v_head_dim":)", v, R"(,"mla_use_output_gate":)",
                         flag(output_gate), R"(,"first_k_dense_replace":1,"max_position_embeddings":4096)");
  text += situ ? R"(,"hidden_act":"situ","activation_situ_beta":4.0,"activation_situ_linear_beta":25.0)"
               : R"(,"hidden_act":"silu")";
  if (q_lora > 0) text += cat(R"(,"q_lora_rank":)", q_lora);
  if (block > 0) text += cat(R"(,"attn_res_block_size":)", block);
  if (full_attn_res) text += R"(,"attn_res_mode":"full")";
  if (experts > 0) {
    text += cat(R"(,"num_experts":)", experts, R"(,"num_experts_per_token":)", topk, R"(,"num_shared_experts":)",
                shared, R"(,"moe_intermediate_size":32,"num_expert_group":)", groups, R"(,"topk_group":)", topk_group,
                R"(,"routed_scaling_factor":1.5)");
    if (latent > 0)
      text += cat(R"(,"routed_expert_hidden_size":)", latent, R"(,"latent_moe_use_norm":)", flag(latent_norm));
    text += cat(R"(,"moe_layer_freq":)", moe_layer_freq);
  }
  if (tied) text += R"(,"tie_word_embeddings":true)";
  if (mtp_layers > 0) text += cat(R"(,"num_nextn_predict_layers":)", mtp_layers);
  const std::string linear =
      cat(R"({"kda_layers":)", list_of(kda), R"(,"full_attn_layers":)", list_of(mla), R"(,"num_heads":)", kda_heads,
          R"(,"head_dim":)", kda_head_dim, R"(,"short_conv_kernel_size":)", conv_width,
          lower_bound ? R"(,"gate_lower_bound":-5.0)" : "", R"(,"use_full_rank_gate":)", flag(full_rank_gate), "}");
  text += cat(R"(,"linear_attn_config":)", linear_attn ? linear : "null");
  if (mxfp4) {
    text += R"(,"quantization_config":{"quant_method":"compressed-tensors","format":"mxfp4-pack-quantized"})";
  }
  if (!k3) return cat(R"({"architectures":["KimiLinearForCausalLM"],)", text, "}");
  return cat(R"({"architectures":["KimiK3ForConditionalGeneration"],"model_type":"kimi_k3","text_config":{)", text, "}",
             vision ? vision_json(hidden) : "", "}");
}

SmallShape random_shape(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](std::vector<int64_t> values) { return values[random() % values.size()]; };
  const auto coin = [&] { return random() % 2 == 0; };
  SmallShape shape;
  shape.k3 = coin();
  shape.layers = pick({2, 3, 5, 6, 7});
  shape.mla_layers.clear();
  for (int64_t l = 0; l < shape.layers; ++l) {
    if (random() % 3 == 0) shape.mla_layers.push_back(l);
  }
  shape.hidden = pick({32, 64, 96});
  shape.vocab = pick({64, 257, 300});
  shape.kda_heads = pick({1, 2, 3});
  shape.kda_head_dim = pick({8, 16, 32, 33});
  shape.conv_width = pick({1, 2, 4});
  shape.mla_heads = pick({1, 2, 3});
  shape.q_lora = pick({0, 16, 24});
  shape.rank = pick({16, 33});
  shape.nope = pick({8, 16});
  shape.rope = pick({4, 8});
  shape.v = pick({8, 24});
  shape.lower_bound = coin();
  shape.full_rank_gate = coin();
  shape.output_gate = coin();
  shape.situ = coin();
  shape.block = pick({0, 1, 2, 3, 4});
  shape.full_attn_res = random() % 4 == 0;
  shape.experts = pick({0, 8, 12});
  shape.topk = pick({1, 3, 4});
  shape.shared = pick({0, 1, 2});
  shape.groups = pick({1, 4});
  shape.topk_group = shape.groups == 1 ? 1 : 3;
  shape.latent = pick({0, 32, 64});
  shape.mxfp4 = coin();
  return shape;
}

RandomModel::RandomModel(const SmallShape& shape, uint64_t seed, ModelOptions options) {
  ThreadPool pool(1);
  const auto report =
      init_random_checkpoint(shape.json(), "shape", dir_, {.seed = seed}, pool, [](uint64_t, uint64_t) {});
  TANDEM_CHECK(report.is_ok(), cat(shape.json(), "\n", report.status().message()));
  if (shape.stored) convert_floats(dir_, *shape.stored);
  auto config = load_model_config(dir_);
  TANDEM_CHECK(config.is_ok(), config.status().message());
  config_ = std::move(config).value();
  auto checkpoint = Checkpoint::open(dir_);
  TANDEM_CHECK(checkpoint.is_ok(), checkpoint.status().message());
  checkpoint_ = std::make_unique<Checkpoint>(std::move(checkpoint).value());
  auto weights = bind_model_weights(*checkpoint_, config_);
  TANDEM_CHECK(weights.is_ok(), weights.status().message());
  weights_ = std::move(weights).value();
  model_ = std::make_unique<Model>(config_, weights_, options);
}

std::vector<TokenId> random_tokens(int64_t count, int64_t vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.emplace_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab)));
  }
  return tokens;
}

std::vector<float> run_rows(const ExecContext& ctx, const RandomModel& random, SequenceCache& cache,
                            const std::vector<TokenId>& tokens, int64_t begin, int64_t end, StepMode mode) {
  TANDEM_CHECK(cache.reserve(end).is_ok(), "reserve");
  StepPlan plan;
  plan.tokens.assign(tokens.begin() + begin, tokens.begin() + end);
  plan.sequences.push_back({.cache = 0,
                            .num_tokens = end - begin,
                            .num_computed_tokens = begin,
                            .mode = mode,
                            .logits = LogitsWanted::kAll,
                            .captures = {}});
  const std::array<SequenceCacheView, 1> views = {cache.view()};
  const auto logits = random.model().forward(ctx, plan, views);
  TANDEM_CHECK(logits.is_ok(), logits.status().message());
  const MatrixView<float>& rows = logits.value();
  return std::vector<float>(rows.data, rows.data + rows.shape[0] * rows.shape[1]);
}

std::vector<float> run_chunks(const ExecContext& ctx, const RandomModel& random, SequenceCache& cache,
                              const std::vector<TokenId>& tokens, int64_t chunk, StepMode mode) {
  std::vector<float> all;
  const auto count = static_cast<int64_t>(tokens.size());
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const auto rows = run_rows(ctx, random, cache, tokens, begin, std::min(count, begin + chunk), mode);
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

}  // namespace tandem::test

// The claims of docs/learn, computed from the shapes and checked against the pages' own words.
#include <gtest/gtest.h>

#include "base/cat.h"
#include "cache/cache_layout.h"
#include "config/model_config.h"
#include "support/golden.h"
#include "weights/tensor_names.h"

namespace tandem {
namespace {

std::string page(const std::string& name) { return test::read_text(test::data_path("../../docs/learn/" + name)); }

ModelConfig k3() {
  auto config = load_model_config_file(test::data_path("../../configs/k3.json"));
  EXPECT_TRUE(config.is_ok()) << config.status().message();
  return std::move(config).value();
}

// 1234567 as "1,234,567".
std::string grouped(int64_t value) {
  std::string digits = std::to_string(value);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

void expect_claim(const std::string& text, const std::string& claim) {
  EXPECT_NE(text.find(claim), std::string::npos) << "the page does not say \"" << claim << "\"";
}

TEST(Learn, OneDecodeStep) {
  const std::string text = page("one-decode-step.md");
  const ModelConfig config = k3();
  int64_t trunk_bytes = 0, expert_bytes = 0, active_parameters = 0;
  for_each_expected_tensor(config, [&](const ExpectedTensor& tensor) {
    if (!tensor.run || tensor.group == TensorGroup::kEmbedding) return;
    if (tensor.expert < 0) {
      trunk_bytes += tensor.released_bytes();
      active_parameters += tensor.num_elements();
    } else if (tensor.expert < config.num_experts_per_token) {  // any sixteen: all are alike
      expert_bytes += tensor.released_bytes();
      active_parameters += tensor.num_elements();
    }
  });
  const CacheLayout layout = make_cache_layout(config, DType::kF32);
  expect_claim(text, cat(grouped(active_parameters), " parameters"));
  expect_claim(text, cat(grouped(trunk_bytes), " bytes of trunk"));
  expect_claim(text, cat(grouped(expert_bytes), " bytes of experts"));
  expect_claim(text, cat(grouped(layout.state_bytes()), " bytes of KDA state"));
  expect_claim(text, cat(grouped(layout.latent_bytes_per_token()), " bytes of latents for every cached token"));
  // From which context on the latents weigh more than reading and writing the states.
  const int64_t crossing =
      (2 * layout.state_bytes() + layout.latent_bytes_per_token() - 1) / layout.latent_bytes_per_token();
  expect_claim(text, cat("from ", grouped(crossing), " tokens on"));
}

TEST(Learn, MlaDecodeNeverRebuildsHeads) {
  const std::string text = page("mla-decode.md");
  const ModelConfig config = k3();
  const int64_t heads = config.num_attention_heads;
  const int64_t expanded = heads * (config.qk_head_dim() + config.v_head_dim);
  expect_claim(text, cat(grouped(expanded), " values"));
  expect_claim(text, cat(config.mla_latent_width(), " values"));
  const int64_t absorbed_flops = heads * 2 * (config.mla_latent_width() + config.kv_lora_rank);
  const int64_t expanded_flops = heads * 2 * (config.qk_head_dim() + config.v_head_dim);
  const int64_t expansion_flops = 2 * config.kv_lora_rank * heads * (config.qk_nope_head_dim + config.v_head_dim);
  expect_claim(text, cat(grouped(absorbed_flops), " operations"));
  expect_claim(text, cat(grouped(expanded_flops), " operations"));
  expect_claim(text, cat(grouped(expansion_flops), " operations"));
  const int64_t crossing = (expansion_flops + absorbed_flops - expanded_flops - 1) / (absorbed_flops - expanded_flops);
  expect_claim(text, cat("from ", crossing, " query rows on"));
}

TEST(Learn, PrefixAndChunksNamesTheRealChunk) {
  const std::string text = page("prefix-and-chunks.md");
  expect_claim(text, "chunks of 16 tokens");
  const CacheLayout layout = make_cache_layout(k3(), DType::kF32);
  const int64_t equal = layout.state_bytes() / layout.latent_bytes_per_token();
  expect_claim(text, cat("as much as the latents of ", grouped(equal), " tokens"));
}

}  // namespace
}  // namespace tandem

// tests/train/export_support.h: configurations of odd widths as config.json texts, and exported models of random
// values.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/cat.h"
#include "support/golden.h"
#include "support/temp_folder.h"
#include "train/export/export_model.h"

namespace tandem::test {

using Json = nlohmann::ordered_json;

// k3-tiny without vision, at widths that no tile divides; w2 of an expert has 40 columns and stays unpacked.
inline Json odd_k3() {
  Json config = Json::parse(read_text(data_path("golden/k3-tiny/config.json")));
  config.erase("vision_config");
  Json& text = config["text_config"];
  text["vocab_size"] = 397;
  text["hidden_size"] = 70;
  text["num_hidden_layers"] = 6;
  text["intermediate_size"] = 45;
  text["num_attention_heads"] = text["num_key_value_heads"] = 3;
  text["num_experts"] = 7;
  text["num_experts_per_token"] = 3;
  text["moe_intermediate_size"] = 40;
  text["routed_expert_hidden_size"] = 64;
  text["q_lora_rank"] = 21;
  text["kv_lora_rank"] = 19;
  text["qk_nope_head_dim"] = 13;
  text["qk_rope_head_dim"] = 6;
  text["v_head_dim"] = 11;
  text["linear_attn_config"]["num_heads"] = 3;
  text["linear_attn_config"]["head_dim"] = 20;
  text["linear_attn_config"]["kda_layers"] = {1, 2, 4};
  text["linear_attn_config"]["full_attn_layers"] = {3, 5, 6};
  for (Json* object : {&config, &text}) {
    (*object)["bos_token_id"] = 1;
    (*object)["eos_token_id"] = 2;
    (*object)["pad_token_id"] = 3;
  }
  config["media_placeholder_token_id"] = 4;
  return config;
}

// The same with experts that are MXFP4 throughout.
inline Json packed_k3() {
  Json config = odd_k3();
  config["text_config"]["moe_intermediate_size"] = 32;
  config["text_config"]["routed_expert_hidden_size"] = 96;
  return config;
}

// kimi-linear-tiny at odd widths; its experts are declared as MXFP4 where `packed`.
inline Json odd_kimi_linear(bool packed) {
  Json config = Json::parse(read_text(data_path("golden/kimi-linear-tiny/config.json")));
  config["vocab_size"] = 353;
  config["hidden_size"] = packed ? 96 : 74;
  config["num_hidden_layers"] = 3;
  config["num_attention_heads"] = config["num_key_value_heads"] = 3;
  config["num_experts"] = 5;
  config["num_experts_per_token"] = 2;
  config["kv_lora_rank"] = 23;
  config["v_head_dim"] = 10;
  config["linear_attn_config"]["head_dim"] = 36;
  config["linear_attn_config"]["kda_layers"] = {1, 2};
  config["linear_attn_config"]["full_attn_layers"] = {3};
  if (packed) config["quantization_config"] = odd_k3()["text_config"]["quantization_config"];
  return config;
}

inline train::TrainModel random_model(const Json& config, uint64_t seed) {
  const Result<ModelConfig> parsed = parse_model_config(config.dump(), "test configuration");
  EXPECT_TRUE(parsed.is_ok()) << parsed.status().message();
  return train::TrainModel::random(parsed.value(), seed, train::InitStyle::kCheckpoint);
}

inline train::ExportOptions export_options(const Json& config, const std::string& dir) {
  train::ExportOptions options;
  options.output_dir = dir;
  options.config_json = config.dump(1);
  return options;
}

}  // namespace tandem::test

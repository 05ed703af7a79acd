// tests/train/run_support.h: a run in a folder of its own: a model of a few thousand parameters, shards of a chain that
// can be learned, a recipe to change. No torch in here.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/cat.h"
#include "corpus/stable_random.h"
#include "corpus/token_shard_writer.h"
#include "support/golden.h"
#include "support/temp_folder.h"
#include "train/run/trainer.h"

namespace tandem::test {

inline constexpr int64_t kRunVocab = 40;

class RunFolder {
 public:
  RunFolder() {
    write("model.json", model_json().dump());
    write_shard("a.bin", 1, LossMask::kNone);
    write_shard("b.bin", 2, LossMask::kNone);
    write_shard("masked.bin", 3, LossMask::kPerToken);
    write_recipe(recipe_json());
  }

  std::string path(const std::string& name) const { return folder_.path(name); }
  void write(const std::string& name, const std::string& text) const { folder_.write(name, text); }
  void write_recipe(const nlohmann::json& recipe) const { write("recipe.json", recipe.dump()); }

  // Twelve steps in two stages, a dozen documents a step, checkpoints at 4, 8 and 12.
  static nlohmann::json recipe_json() {
    return nlohmann::json::parse(R"({
      "run": "run", "model": "model.json", "data": {"text": ["[ab].bin"], "chat": ["masked.bin"]},
      "curriculum": [{"data": "text", "length": 32, "tokens": 1024, "pack": "stream"},
                     {"data": "text", "length": 64, "tokens": 512, "pack": "documents"}],
      "validation": {"data": "chat", "length": 32, "sequences": 4, "every_steps": 6},
      "batch_tokens": 128, "micro_batch_tokens": 64, "chunk_size": 16,
      "optimizer": {"learning_rate": 0.01}, "checkpoint": {"every_steps": 4, "keep": 2}, "seed": 5})");
  }

  // All of K3's mechanisms; experts of whole MXFP4 groups.
  static nlohmann::json model_json() {
    nlohmann::json config = nlohmann::json::parse(read_text(data_path("../../configs/demo.json")));
    config.update({{"bos_token_id", 0}, {"eos_token_id", 1}, {"pad_token_id", 2}});
    nlohmann::json& text = config["text_config"];
    text.update({{"vocab_size", kRunVocab},
                 {"hidden_size", 16},
                 {"num_hidden_layers", 3},
                 {"num_attention_heads", 2},
                 {"num_key_value_heads", 2},
                 {"intermediate_size", 24},
                 {"attn_res_block_size", 2},
                 {"num_experts", 4},
                 {"num_experts_per_token", 2},
                 {"moe_intermediate_size", 32},
                 {"routed_expert_hidden_size", 32},
                 {"q_lora_rank", 8},
                 {"kv_lora_rank", 8},
                 {"qk_nope_head_dim", 6},
                 {"qk_rope_head_dim", 2},
                 {"v_head_dim", 8}});
    text["linear_attn_config"].update(
        {{"kda_layers", {1, 2}}, {"full_attn_layers", {3}}, {"num_heads", 2}, {"head_dim", 8}});
    return config;
  }

  train::Recipe recipe(train::RunKind kind = train::RunKind::kPretrain,
                       const std::vector<std::string>& overrides = {}) const {
    return train::load_recipe(path("recipe.json"), kind, overrides).value();
  }

  // log.jsonl without what a clock decides.
  std::vector<nlohmann::json> log(const std::string& run) const {
    std::vector<nlohmann::json> lines;
    std::ifstream file(path(run + "/log.jsonl"));
    for (std::string line; std::getline(file, line);) {
      lines.push_back(nlohmann::json::parse(line));
      lines.back().erase("seconds");
      lines.back().erase("tokens_per_second");
    }
    return lines;
  }

 private:
  // Documents of 5 to 48 tokens in which a token mostly decides the next one; masked: the second half is trained.
  void write_shard(const std::string& name, uint64_t seed, LossMask mask) const {
    StableRandom random(seed);
    TokenShardWriter writer = TokenShardWriter::create(path(name), kRunVocab, mask).value();
    for (int d = 0; d < 40; ++d) {
      std::vector<TokenId> tokens(5 + random.below(44));
      std::vector<uint8_t> loss(mask == LossMask::kNone ? 0 : tokens.size());
      auto token = static_cast<int32_t>(random.below(kRunVocab));
      for (size_t i = 0; i < tokens.size(); ++i) {
        token = random.below(8) == 0 ? static_cast<int32_t>(random.below(kRunVocab)) : (token * 7 + 3) % kRunVocab;
        tokens[i] = TokenId{token};
        if (!loss.empty()) loss[i] = i >= tokens.size() / 2;
      }
      EXPECT_TRUE(writer.add_document(tokens, loss).is_ok());
    }
    EXPECT_TRUE(writer.finish().is_ok());
  }

  TempFolder folder_;
};

}  // namespace tandem::test

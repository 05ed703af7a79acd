// tests/model/random_model.h: small random models of any shape of the family, for property tests of the forward pass.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/sequence_cache.h"
#include "model/forward.h"
#include "support/compare.h"
#include "support/temp_folder.h"
#include "weights/checkpoint.h"
#include "weights/model_weights.h"

namespace tandem::test {

// The knobs of a small model; the rest follows. Everything is written as a config.json of the family.
struct SmallShape {
  bool k3 = true;  // KimiK3ForConditionalGeneration, else KimiLinearForCausalLM
  int64_t layers = 6;
  std::vector<int64_t> mla_layers = {3, 5};  // from 0
  int64_t hidden = 64;
  int64_t vocab = 300;
  int64_t kda_heads = 2, kda_head_dim = 32, conv_width = 4;
  int64_t mla_heads = 2, q_lora = 24, rank = 32, nope = 16, rope = 8, v = 16;  // q_lora 0: direct projection
  bool lower_bound = true, full_rank_gate = true, output_gate = true;
  bool situ = true;
  int64_t block = 3;  // attn_res_block_size; 0: none
  bool full_attn_res = false;
  int64_t experts = 8, topk = 3, shared = 1, groups = 1, topk_group = 1;  // experts 0: dense
  int64_t latent = 32;                                                    // 0: experts at full width
  bool latent_norm = true;
  int64_t moe_layer_freq = 1;
  bool mxfp4 = true;
  bool linear_attn = true;      // false: linear_attn_config is null and every layer MLA
  bool tied = false;            // lm_head is the embedding
  int64_t mtp_layers = 0;       // declared layers that the text model does not run
  bool vision = false;          // K3 only
  std::optional<DType> stored;  // kF16 or kF32: the type that every BF16 and F32 tensor is stored in
  std::string json() const;
};

// A varied shape for each seed.
SmallShape random_shape(uint64_t seed);

// A checkpoint of the shape in a temporary folder, opened and bound; the folder goes with it.
class RandomModel {
 public:
  RandomModel(const SmallShape& shape, uint64_t seed, ModelOptions options = {});

  const ModelConfig& config() const { return config_; }
  const Model& model() const { return *model_; }
  const ModelWeights& weights() const { return weights_; }
  const std::string& dir() const { return dir_; }
  SequenceCache new_cache(DType dtype = DType::kF32) const {
    return SequenceCache(make_cache_layout(config_, dtype, 16));
  }

 private:
  TempFolder folder_;
  std::string dir_ = folder_.path();
  ModelConfig config_;
  std::unique_ptr<Checkpoint> checkpoint_;
  ModelWeights weights_;
  std::unique_ptr<Model> model_;
};

std::vector<TokenId> random_tokens(int64_t count, int64_t vocab, uint64_t seed);

// Runs tokens[begin, end) of a sequence on its cache and returns the logits of every row, [rows · V].
std::vector<float> run_rows(const ExecContext& ctx, const RandomModel& random, SequenceCache& cache,
                            const std::vector<TokenId>& tokens, int64_t begin, int64_t end, StepMode mode);

// The whole sequence from an empty cache in steps of `chunk` tokens.
std::vector<float> run_chunks(const ExecContext& ctx, const RandomModel& random, SequenceCache& cache,
                              const std::vector<TokenId>& tokens, int64_t chunk, StepMode mode);

}  // namespace tandem::test

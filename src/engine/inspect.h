// engine/inspect.h: what a model is, from its configuration, index and shard headers alone: no tensor is read, so a
// header-only copy of a 1.56 TB checkpoint serves as well. A bare config.json is accepted too: the report then states
// what a checkpoint of that shape holds as released.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/model_config.h"
#include "weights/checkpoint_check.h"

namespace tandem {

// A kind of layer's memory for one sequence, f32 at rest; zeros when the model has no such layer.
struct CacheShapes {
  int64_t kda_layers = 0;
  int64_t kda_heads = 0;
  int64_t kda_key_dim = 0;
  int64_t kda_value_dim = 0;
  int64_t conv_channels = 0;  // 3P: the q, k and v streams
  int64_t conv_history = 0;   // W − 1 tokens
  int64_t mla_layers = 0;
  int64_t mla_latent_width = 0;

  int64_t recurrent_bytes_per_layer() const { return kda_heads * kda_key_dim * kda_value_dim * 4; }
  int64_t conv_bytes_per_layer() const { return conv_channels * conv_history * 4; }
  int64_t latent_bytes_per_token_per_layer() const { return mla_latent_width * 4; }
  int64_t bytes_per_sequence() const { return kda_layers * (recurrent_bytes_per_layer() + conv_bytes_per_layer()); }
  int64_t bytes_per_token() const { return mla_layers * latent_bytes_per_token_per_layer(); }
};
CacheShapes cache_shapes(const ModelConfig& config);

struct InspectReport {
  std::string model;  // as asked for
  bool has_checkpoint = false;
  int64_t num_shards = 0;
  ModelConfig config;
  CacheShapes cache;
  int64_t num_tensors = 0;
  uint64_t total_bytes = 0;
  CheckpointReport tensors;  // of a bare config.json: as released, nothing missing

  bool is_clean() const { return tensors.is_clean(); }
};

// `model` is a folder or a config.json. Missing, unknown and mis-shaped tensors are part of the report; a checkpoint
// whose files contradict each other is an error.
Result<InspectReport> inspect_model(const std::string& model);

std::string inspect_text(const InspectReport& report);  // lines, the last one ended
std::string inspect_json(const InspectReport& report);  // one document, keys in a fixed order

}  // namespace tandem

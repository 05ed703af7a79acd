// config/model_config_parts.h: the parts of a config.json, each read into its share of a ModelConfig. Internal to
// src/config. Every reader reports what it finds wrong and goes on; a ModelConfig is usable only without problems.
#pragma once

#include "config/json_fields.h"
#include "config/model_config.h"

namespace tandem {

// Largest values accepted, so that no product of a model's extents can leave int64: see check_total_size.
inline constexpr int64_t kMaxLayers = 16384;
inline constexpr int64_t kMaxExperts = 65536;
inline constexpr int64_t kMaxHeads = 65536;
inline constexpr int64_t kMaxWidth = int64_t{1} << 24;

void read_text_config(const JsonFields& text, ModelConfig& config);
void read_attention(const JsonFields& text, ModelConfig& config);
void read_linear_attention(const JsonFields& text, ModelConfig& config);
void read_feed_forward(const JsonFields& text, ModelConfig& config);
void read_attn_res(const JsonFields& text, ModelConfig& config);
void read_vision_config(const JsonFields& vision, ModelConfig& config);
// `owner` is the object that may hold quantization_config.
void read_quantization(const JsonFields& owner, ModelConfig& config);
// One problem when the shapes together imply more parameters than any file can hold.
void check_total_size(const ModelConfig& config, ConfigProblems& problems);

}  // namespace tandem

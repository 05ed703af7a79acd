// cache/cache_layout.h: sizes of one sequence's caches, from the model's configuration. Pure arithmetic.
#pragma once

#include <cstdint>
#include <vector>

#include "config/model_config.h"
#include "tensor/dtype.h"

namespace tandem {

struct CacheLayout {
  std::vector<LayerKind> kinds;
  DType dtype = DType::kF32;  // of states, conv history and latents: kF32 or kBF16; part of the cache identity
  int64_t kda_heads = 0;      // H
  int64_t kda_head_dim = 0;   // K = V
  int64_t conv_rows = 0;      // W − 1
  int64_t conv_channels = 0;  // 3P
  int64_t latent_width = 0;   // rank + rope
  int64_t page_tokens = 0;    // tokens of one MLA page

  int64_t recurrent_elements() const { return kda_heads * kda_head_dim * kda_head_dim; }
  int64_t conv_elements() const { return conv_rows * conv_channels; }
  int64_t recurrent_bytes() const { return recurrent_elements() * dtype_size(dtype); }
  int64_t conv_bytes() const { return conv_elements() * dtype_size(dtype); }
  int64_t state_bytes_per_layer() const { return recurrent_bytes() + conv_bytes(); }
  int64_t latent_row_bytes() const { return latent_width * dtype_size(dtype); }
  int64_t page_bytes() const { return page_tokens * latent_row_bytes(); }
  int64_t num_kda_layers() const;
  int64_t num_mla_layers() const;
  int64_t state_bytes() const { return num_kda_layers() * state_bytes_per_layer(); }  // one sequence, any length
  int64_t latent_bytes_per_token() const { return num_mla_layers() * latent_row_bytes(); }
};

inline constexpr int64_t kDefaultPageTokens = 64;

CacheLayout make_cache_layout(const ModelConfig& config, DType dtype, int64_t page_tokens = kDefaultPageTokens);

}  // namespace tandem

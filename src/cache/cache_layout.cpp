#include "cache/cache_layout.h"

#include <algorithm>

#include "base/check.h"

namespace tandem {

int64_t CacheLayout::num_kda_layers() const { return std::count(kinds.begin(), kinds.end(), LayerKind::kKda); }
int64_t CacheLayout::num_mla_layers() const { return std::count(kinds.begin(), kinds.end(), LayerKind::kMla); }

CacheLayout make_cache_layout(const ModelConfig& config, DType dtype, int64_t page_tokens) {
  TANDEM_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "caches are f32 or bf16");
  TANDEM_CHECK(page_tokens > 0, "a page holds at least one token");
  CacheLayout layout;
  layout.kinds = config.kinds;
  layout.dtype = dtype;
  layout.kda_heads = config.kda_num_heads;
  layout.kda_head_dim = config.kda_head_dim;
  layout.conv_rows = std::max<int64_t>(config.short_conv_kernel_size - 1, 0);
  layout.conv_channels = 3 * config.kda_projection_size();
  layout.latent_width = config.mla_latent_width();
  layout.page_tokens = page_tokens;
  return layout;
}

}  // namespace tandem

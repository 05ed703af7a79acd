#include "cost/cache_memory.h"

namespace tandem {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Result<CacheMemory> cache_memory(const ModelCost& model, int64_t tokens, int64_t hash_unit) {
  const CacheLayout& layout = model.cache;
  CacheMemory memory;
  memory.page_tokens = layout.page_tokens;
  const auto token_bytes = static_cast<int64_t>(cache_bytes_per_token(model));
  const int64_t page_bytes = layout.page_tokens * token_bytes;
  memory.alone.states = layout.state_bytes();
  memory.alone.latents = tokens * token_bytes;
  memory.alone.padding = ceil_div(tokens, layout.page_tokens) * page_bytes - memory.alone.latents;
  if (model.path == AttentionPath::kReference) return memory;

  Result<PoolLayout> pool = make_pool_layout(layout, hash_unit, std::nullopt);
  if (!pool.is_ok()) return pool.status();
  memory.pool_blocks = pool.value().blocks_needed(tokens, 0);
  memory.pooled.states = memory.alone.states;
  memory.pooled.latents = memory.alone.latents;
  memory.pooled.padding =
      memory.pool_blocks * pool.value().block_bytes() - memory.pooled.states - memory.pooled.latents;
  memory.pool = std::move(pool).value();
  return memory;
}

}  // namespace tandem

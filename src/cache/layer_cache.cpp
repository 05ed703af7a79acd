#include "cache/layer_cache.h"

#include "base/cat.h"

namespace tandem {

int64_t cached_tokens(const LayerCache& cache) {
  if (const auto* state = std::get_if<KdaState>(&cache)) return state->position;
  return std::get<MlaLatent>(cache).length;
}

Result<int64_t> agreed_length(const SequenceCacheView& cache) {
  if (cache.layers.empty()) return Status::invalid("a sequence cache has no layers");
  const int64_t length = cached_tokens(cache.layers[0]);
  for (size_t layer = 1; layer < cache.layers.size(); ++layer) {
    const int64_t other = cached_tokens(cache.layers[layer]);
    if (other != length) {
      return Status::failed_precondition(cat("sequence cache: layer 0 holds ", length, " tokens and layer ", layer,
                                             " holds ", other, ": KDA states and MLA latents must move together"));
    }
  }
  return length;
}

}  // namespace tandem

#include "cache/layer_cache.h"

#include <utility>

#include "base/cat.h"
#include "base/check.h"

namespace tandem {

int64_t begin_kda_state(KdaState& state) { return std::exchange(state.position, kStateInFlight); }

void append_kda_state(KdaState& state, int64_t before, int64_t num_tokens) {
  TANDEM_CHECK(state.position == kStateInFlight, "a KDA state is advanced by the step that marked it");
  TANDEM_CHECK(before >= 0 && num_tokens >= 0, "a KDA state only advances");
  state.position = before + num_tokens;
  ++state.state_version;
}

void append_mla_latent_page(MlaLatent& latent, int64_t num_rows) {
  TANDEM_CHECK(num_rows >= 0 && num_rows <= latent.capacity() - latent.length, "latents lie in the page table");
  latent.length += num_rows;
}

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

#include "engine/serving/cache_compare.h"

#include <cstring>
#include <vector>

#include "tensor/stored_floats.h"

namespace tandem {
namespace {

// The first element of two stored rows with other bits.
std::optional<CacheMismatch> compare_stored(const void* expected, const void* found, DType dtype, int64_t count) {
  const int64_t size = dtype_size(dtype);
  if (std::memcmp(expected, found, static_cast<size_t>(count * size)) == 0) return std::nullopt;
  const auto* a = static_cast<const std::byte*>(expected);
  const auto* b = static_cast<const std::byte*>(found);
  int64_t i = 0;
  while (std::memcmp(a + i * size, b + i * size, static_cast<size_t>(size)) == 0) ++i;
  CacheMismatch mismatch;
  mismatch.element = i;
  load_floats(a + i * size, dtype, {&mismatch.expected, 1});
  load_floats(b + i * size, dtype, {&mismatch.found, 1});
  return mismatch;
}

const std::byte* latent_row(const MlaLatent& latent, int64_t position, int64_t row_bytes) {
  return latent.pages[static_cast<size_t>(position / latent.page_tokens)] + position % latent.page_tokens * row_bytes;
}

}  // namespace

std::optional<CacheMismatch> compare_latents(const CacheLayout& layout, const SequenceCacheView& expected,
                                             const SequenceCacheView& found, int64_t begin, int64_t end) {
  const int64_t row_bytes = layout.latent_row_bytes();
  for (int64_t position = begin; position < end; ++position) {
    for (size_t l = 0; l < expected.layers.size(); ++l) {
      const auto* a = std::get_if<MlaLatent>(&expected.layers[l]);
      if (a == nullptr) continue;
      const auto& b = std::get<MlaLatent>(found.layers[l]);
      auto mismatch = compare_stored(latent_row(*a, position, row_bytes), latent_row(b, position, row_bytes), a->dtype,
                                     layout.latent_width);
      if (!mismatch) continue;
      mismatch->what = "mla_latent";
      mismatch->layer = static_cast<int64_t>(l);
      mismatch->position = position;
      return mismatch;
    }
  }
  return std::nullopt;
}

std::optional<CacheMismatch> compare_states(const CacheLayout& layout, const SequenceCacheView& expected,
                                            const SequenceCacheView& found, int64_t position) {
  for (size_t l = 0; l < expected.layers.size(); ++l) {
    const auto* a = std::get_if<KdaState>(&expected.layers[l]);
    if (a == nullptr) continue;
    const auto& b = std::get<KdaState>(found.layers[l]);
    const char* what = "kda_state";
    auto mismatch = compare_stored(a->recurrent, b.recurrent, a->dtype, layout.recurrent_elements());
    if (!mismatch) {
      what = "conv_history";
      mismatch = compare_stored(a->conv, b.conv, a->dtype, layout.conv_elements());
    }
    if (!mismatch) continue;
    mismatch->what = what;
    mismatch->layer = static_cast<int64_t>(l);
    mismatch->position = position;
    return mismatch;
  }
  return std::nullopt;
}

std::optional<CacheMismatch> compare_logits(std::span<const float> expected, std::span<const float> found,
                                            int64_t num_layers, int64_t position) {
  auto mismatch = compare_stored(expected.data(), found.data(), DType::kF32, static_cast<int64_t>(expected.size()));
  if (!mismatch) return std::nullopt;
  mismatch->what = "logits";
  mismatch->layer = num_layers;
  mismatch->position = position;
  return mismatch;
}

}  // namespace tandem

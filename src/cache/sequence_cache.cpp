#include "cache/sequence_cache.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/cat.h"

namespace tandem {

SequenceCache::SequenceCache(const CacheLayout& layout) : layout_(layout), page_tables_(layout.kinds.size()) {
  const size_t element = static_cast<size_t>(dtype_size(layout_.dtype));
  for (const LayerKind kind : layout_.kinds) {
    if (kind == LayerKind::kKda) {
      auto recurrent = std::make_unique<Buffer>(static_cast<size_t>(layout_.recurrent_elements()) * element);
      auto conv = std::make_unique<Buffer>(static_cast<size_t>(layout_.conv_elements()) * element);
      layers_.push_back(KdaState{.recurrent = recurrent->data(), .conv = conv->data(), .dtype = layout_.dtype});
      memory_.push_back(std::move(recurrent));
      memory_.push_back(std::move(conv));
    } else {
      layers_.push_back(MlaLatent{.pages = {}, .page_tokens = layout_.page_tokens, .dtype = layout_.dtype});
    }
  }
}

Status SequenceCache::reserve(int64_t num_tokens) {
  const auto pages_needed = static_cast<size_t>((num_tokens + layout_.page_tokens - 1) / layout_.page_tokens);
  const size_t kept = memory_.size();
  try {
    std::vector<std::unique_ptr<Buffer>> fresh;
    for (const auto& table : page_tables_) {
      const size_t l = static_cast<size_t>(&table - page_tables_.data());
      if (layout_.kinds[l] != LayerKind::kMla) continue;
      for (size_t page = table.size(); page < pages_needed; ++page) {
        fresh.push_back(std::make_unique<Buffer>(static_cast<size_t>(layout_.page_bytes())));
      }
    }
    memory_.reserve(kept + fresh.size());
    size_t next = 0;
    for (size_t l = 0; l < page_tables_.size(); ++l) {
      if (layout_.kinds[l] != LayerKind::kMla) continue;
      auto& table = page_tables_[l];
      table.reserve(std::max(pages_needed, table.size()));
      while (table.size() < pages_needed) {
        table.push_back(fresh[next]->data());
        memory_.push_back(std::move(fresh[next]));
        ++next;
      }
      std::get<MlaLatent>(layers_[l]).pages = table;
    }
  } catch (const std::bad_alloc&) {
    return Status::exhausted(cat("sequence cache: no memory for ", num_tokens, " tokens of ",
                                 layout_.latent_bytes_per_token(), " bytes each"));
  }
  return Status::ok();
}

void SequenceCache::reset() {
  for (LayerCache& layer : layers_) {
    if (auto* state = std::get_if<KdaState>(&layer)) {
      const size_t element = static_cast<size_t>(dtype_size(layout_.dtype));
      std::memset(state->recurrent, 0, static_cast<size_t>(layout_.recurrent_elements()) * element);
      if (layout_.conv_elements() > 0) {
        std::memset(state->conv, 0, static_cast<size_t>(layout_.conv_elements()) * element);
      }
      state->position = 0;
      ++state->state_version;
    } else {
      std::get<MlaLatent>(layer).length = 0;
    }
  }
}

int64_t SequenceCache::length() const { return layers_.empty() ? 0 : cached_tokens(layers_[0]); }

int64_t SequenceCache::bytes() const {
  int64_t total = 0;
  for (const auto& buffer : memory_) total += static_cast<int64_t>(buffer->size());
  return total;
}

}  // namespace tandem

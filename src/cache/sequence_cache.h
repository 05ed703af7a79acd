// cache/sequence_cache.h: the caches of one sequence with memory of their own, growing a page at a time.
//
//   Move-only; the view stays valid until reserve(), reset() or destruction. Threading: engine thread only.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/result.h"
#include "cache/cache_layout.h"
#include "cache/layer_cache.h"

namespace tandem {

class SequenceCache {
 public:
  explicit SequenceCache(const CacheLayout& layout);  // at position 0: zero states, no pages
  SequenceCache(SequenceCache&&) noexcept = default;
  SequenceCache& operator=(SequenceCache&&) noexcept = default;

  // Room for `num_tokens` tokens in every MLA layer. kResourceExhausted when memory is refused; nothing changes then.
  Status reserve(int64_t num_tokens);
  void reset();  // back to position 0; pages are kept

  SequenceCacheView view() { return {layers_}; }
  const std::vector<LayerCache>& layers() const { return layers_; }
  const CacheLayout& layout() const { return layout_; }
  int64_t length() const;  // tokens that every layer holds
  int64_t bytes() const;   // memory held

 private:
  using Buffer = std::vector<std::byte>;
  CacheLayout layout_;
  std::vector<LayerCache> layers_;
  std::vector<std::unique_ptr<Buffer>> memory_;       // states, and pages
  std::vector<std::vector<std::byte*>> page_tables_;  // by layer; empty for KDA
};

}  // namespace tandem

// Preemption: a sequence's exact states and latents kept outside the pool, and brought back.
#define XXH_STATIC_LINKING_ONLY  // the streaming state on the stack
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/check.h"
#include "cache/hybrid_cache_impl.h"

namespace tandem {
namespace {

// A page whose rows were left in the pool only, because others use it too, has no copy.
struct SwappedPage {
  BlockId block;
  uint64_t serial = 0;  // of the tenancy that held the rows
  std::optional<int64_t> copy_at;
};

class SwappedCopy : public SwappedSequence {
 public:
  int64_t bytes() const override { return size; }
  int64_t length() const override { return sequence.committed; }
  uint64_t checksum() const {
    return XXH3_64bits_withSeed(data.get(), static_cast<size_t>(size), static_cast<XXH64_hash_t>(sequence.committed));
  }

  CachedSequence sequence;  // without blocks, layers and nodes
  std::vector<SwappedPage> pages;
  std::unique_ptr<std::byte[]> data;  // states by group and slot, then rows by page and slot
  int64_t size = 0;
  uint64_t proof = 0;  // of data
  int64_t num_quarantines = 0;
};

// The rows of page `p` into a block of its own.
void restore_page(BlockPool& pool, const PoolLayout& layout, const SwappedCopy& copy, size_t p, BlockId block) {
  const int64_t begin = static_cast<int64_t>(p) * layout.cache.page_tokens;
  const int64_t rows = std::min(copy.length() - begin, layout.cache.page_tokens);
  const int64_t bytes = rows * layout.cache.latent_row_bytes();
  pool.mark_dirty(block, bytes);
  for (int64_t s = 0; s < layout.num_mla_layers; ++s) {
    std::memcpy(pool.slot(block, s), copy.data.get() + *copy.pages[p].copy_at + s * bytes, static_cast<size_t>(bytes));
  }
  pool.set_valid_tokens(block, rows);
}

void restore_state(BlockPool& pool, const PoolLayout& layout, const SwappedCopy& copy,
                   std::span<const BlockId> blocks) {
  const std::byte* next = copy.data.get();
  for (size_t g = 0; g < blocks.size(); ++g) {
    for (int64_t s = 0; s < layout.kda_layers_in_group(static_cast<int64_t>(g)); ++s) {
      std::memcpy(pool.slot(blocks[g], s), next, static_cast<size_t>(layout.state_bytes));
      next += layout.state_bytes;
    }
    pool.set_version(blocks[g], pool.meta(blocks[g]).version + 1);
    pool.set_valid_tokens(blocks[g], copy.length());
  }
}

}  // namespace

int64_t HybridCache::Impl::swap_bytes(const CachedSequence& sequence) const {
  int64_t bytes = layout.num_kda_layers * layout.state_bytes;
  for (int64_t p = 0; p < layout.pages(sequence.committed); ++p) {
    if (pool->meta(sequence.pages[static_cast<size_t>(p)]).ref > 1) continue;
    const int64_t rows = std::min(sequence.committed - p * layout.cache.page_tokens, layout.cache.page_tokens);
    bytes += rows * layout.cache.latent_row_bytes() * layout.num_mla_layers;
  }
  return bytes;
}

std::unique_ptr<SwappedSequence> HybridCache::Impl::swap_out(CachedSequence& sequence, int64_t max_bytes) {
  TANDEM_CHECK(sequence.phase != StepPhase::kFailed, "a failed sequence can only be released");
  auto copy = std::make_unique<SwappedCopy>();
  copy->size = swap_bytes(sequence);
  if (copy->size > max_bytes) return nullptr;
  copy->data.reset(new (std::nothrow) std::byte[static_cast<size_t>(copy->size)]);
  if (copy->data == nullptr) return nullptr;
  std::byte* next = copy->data.get();
  const auto keep = [&](const std::byte* bytes, int64_t count) {
    std::memcpy(next, bytes, static_cast<size_t>(count));
    next += count;
  };
  for (size_t g = 0; g < sequence.state.size(); ++g) {
    for (int64_t s = 0; s < layout.kda_layers_in_group(static_cast<int64_t>(g)); ++s) {
      keep(pool->slot(sequence.state[g], s), layout.state_bytes);
    }
  }
  for (int64_t p = 0; p < layout.pages(sequence.committed); ++p) {
    const BlockId block = sequence.pages[static_cast<size_t>(p)];
    SwappedPage page{.block = block, .serial = pool->meta(block).serial, .copy_at = {}};
    if (pool->meta(block).ref == 1) {
      const int64_t rows = std::min(sequence.committed - p * layout.cache.page_tokens, layout.cache.page_tokens);
      page.copy_at = next - copy->data.get();
      for (int64_t s = 0; s < layout.num_mla_layers; ++s) {
        keep(pool->slot(block, s), rows * layout.cache.latent_row_bytes());
      }
    }
    copy->pages.push_back(page);
  }
  cancel_plan(sequence);
  CachedSequence& kept = copy->sequence;
  kept.scope = sequence.scope;
  kept.is_shared = sequence.is_shared;
  kept.is_refused = is_refused(sequence);
  kept.match = sequence.match;
  kept.tokens = sequence.tokens;
  kept.prompt_tokens = sequence.prompt_tokens;
  kept.committed = sequence.committed;
  kept.published = sequence.published;
  kept.wanted = sequence.wanted;
  kept.next_wanted = sequence.next_wanted;
  kept.rolling = sequence.rolling;
  kept.checkpoints = sequence.checkpoints;
  copy->num_quarantines = num_quarantines;
  copy->proof = copy->checksum();
  counts.copied_bytes += copy->size;
  release(sequence.id);
  return copy;
}

bool HybridCache::Impl::swap_in(SeqId id, const SwappedSequence& swapped, int64_t room_tokens, bool& lost) {
  TANDEM_CHECK(!sequences.contains(id.value), "a sequence is swapped in once");
  const auto& copy = static_cast<const SwappedCopy&>(swapped);
  const CachedSequence& kept = copy.sequence;
  const int64_t page_tokens = layout.cache.page_tokens;
  lost = copy.checksum() != copy.proof;
  if (lost) {
    ++counts.refused_checkpoints;
    return false;
  }
  // A whole page that the pool still has is taken as it is; a partial one always from the copy, to be written on.
  const auto is_there = [&](size_t p) {
    const BlockMeta& meta = pool->meta(copy.pages[p].block);
    const bool is_whole = static_cast<int64_t>(p + 1) * page_tokens <= kept.committed;
    return is_whole && meta.serial == copy.pages[p].serial && meta.phase != BlockPhase::kFree;
  };
  int64_t needed =
      layout.num_kda_groups +
      std::max<int64_t>(layout.pages(kept.committed + room_tokens) - static_cast<int64_t>(copy.pages.size()), 0);
  std::vector<BlockId> pinned;
  for (size_t p = 0; p < copy.pages.size(); ++p) {
    if (is_there(p)) {
      pool->add_use(copy.pages[p].block);
      pinned.push_back(copy.pages[p].block);
    } else {
      lost = lost || !copy.pages[p].copy_at;
      ++needed;
    }
  }
  if (lost || pool->num_available() < needed) {
    drop_uses(pinned);
    return false;
  }
  auto made = std::make_unique<CachedSequence>(kept);
  CachedSequence& back = *made;
  back.id = id;
  back.is_refused = kept.is_refused || copy.num_quarantines != num_quarantines;
  back.page_tables.resize(layout.layers.size());
  make_layers(back.layers);
  for (size_t p = 0, next_pinned = 0; p < copy.pages.size(); ++p) {
    if (next_pinned < pinned.size() && pinned[next_pinned] == copy.pages[p].block) {
      add_page(back, pinned[next_pinned++]);
      continue;
    }
    const BlockId block = take_block(BlockKind::kMla, 0);
    restore_page(*pool, layout, copy, p, block);
    add_page(back, block);
  }
  while (static_cast<int64_t>(back.pages.size()) < layout.pages(kept.committed + room_tokens)) {
    add_page(back, take_block(BlockKind::kMla, 0));
  }
  take_state(back.state);
  restore_state(*pool, layout, copy, back.state);
  point_states(back.layers, back.state, kept.committed);
  set_length(back, kept.committed);
  counts.copied_bytes += copy.size;
  // What the index lost meanwhile is there again and can be named; after a quarantine nothing of it may be.
  if (!back.is_refused) back.published = 0;
  stand_on_nodes(back);
  publish(back);
  sequences.emplace(id.value, std::move(made));
  return true;
}

}  // namespace tandem

// Admission and the end of a sequence: pin the hit in all groups, then allocate, then copy.
#include <algorithm>

#include "base/check.h"
#include "cache/hybrid_cache_impl.h"

namespace tandem {
namespace {

// Uses of the blocks of a hit, given back when the admission is over, whatever became of it.
class Pins {
 public:
  explicit Pins(BlockPool& pool) : pool_(pool) {}
  Pins(const Pins&) = delete;
  Pins& operator=(const Pins&) = delete;
  ~Pins() { clear(); }
  void add(BlockId block) {
    pool_.add_use(block);
    blocks_.push_back(block);
  }
  void clear() {
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) pool_.drop_use(*block);
    blocks_.clear();
  }

 private:
  BlockPool& pool_;
  std::vector<BlockId> blocks_;
};

}  // namespace

PrefixMatch HybridCache::Impl::cold_match(std::span<const TokenId> prompt) const {
  PrefixMatch match;
  match.prompt_tokens = static_cast<int64_t>(prompt.size());
  match.hash_unit = layout.hash_unit;
  match.missed.push_back({.begin = 0, .end = match.prompt_tokens, .reason = MissReason::kNeverSeen});
  return match;
}

PrefixLookup HybridCache::Impl::cold_lookup(std::span<const TokenId> prompt) const {
  return {.match = cold_match(prompt), .pages = {}, .checkpoint = {}, .latent_tokens = 0};
}

Status HybridCache::Impl::verify_checkpoint(CheckpointId id, std::span<const TokenId> prefix,
                                            const CacheScope& scope) const {
  // Hashed again from the tokens: what the index says of the prefix is not taken on trust.
  PrefixHash chain = hash_prefix_root(identity(), layout.hash_unit, scope.salt);
  const auto unit = static_cast<size_t>(layout.hash_unit);
  for (size_t at = 0; at < prefix.size(); at += unit) {
    chain = chain_prefix_hash(chain, hash_prefix_unit(prefix.subspan(at, unit)));
  }
  return store.verify(id, static_cast<int64_t>(prefix.size()), chain);
}

std::optional<PrefixMatch> HybridCache::Impl::admit(SeqId id, std::span<const TokenId> prompt, const CacheScope& scope,
                                                    int64_t room_tokens, bool is_shared) {
  TANDEM_CHECK(!prompt.empty() && room_tokens >= 0, "a prompt has a token");
  TANDEM_CHECK(!sequences.contains(id.value), "a sequence is admitted once");
  while (true) {
    PrefixLookup found = is_shared ? index.lookup(prompt, scope) : cold_lookup(prompt);
    Pins pins(*pool);
    for (const BlockId page : found.pages) pins.add(page);
    if (found.checkpoint) {
      for (const BlockId block : store.find(*found.checkpoint)->blocks) pins.add(block);
    }
    const int64_t hit = found.match.hit_tokens;
    if (pool->num_available() < layout.blocks_needed(hit + room_tokens, hit)) {
      // Others will give blocks back. Without others the hit itself is in the way, and goes.
      if (!sequences.empty() || hit == 0) return std::nullopt;
      pins.clear();
      if (pool->num_available() < layout.blocks_needed(room_tokens, 0)) return std::nullopt;
      const int64_t latent_tokens = found.latent_tokens;
      found = cold_lookup(prompt);
      found.latent_tokens = latent_tokens;
      found.match.missed.front().reason = MissReason::kEvicted;
    } else if (found.checkpoint &&
               !verify_checkpoint(*found.checkpoint, prompt.first(static_cast<size_t>(hit)), scope).is_ok()) {
      pins.clear();
      ++counts.refused_checkpoints;
      drop_checkpoint(*found.checkpoint, MissReason::kQuarantined);
      continue;
    }
    auto sequence = start(id, prompt, scope, is_shared, found, room_tokens);
    const PrefixMatch match = sequence->match;
    sequences.emplace(id.value, std::move(sequence));
    return match;
  }
}

std::unique_ptr<CachedSequence> HybridCache::Impl::start(SeqId id, std::span<const TokenId> prompt,
                                                         const CacheScope& scope, bool is_shared,
                                                         const PrefixLookup& found, int64_t room_tokens) {
  auto made = std::make_unique<CachedSequence>();
  CachedSequence& sequence = *made;
  const int64_t hit = found.match.hit_tokens;
  sequence.id = id;
  sequence.scope = scope;
  sequence.is_shared = is_shared;
  sequence.match = found.match;
  sequence.tokens.assign(prompt.begin(), prompt.end());
  sequence.prompt_tokens = static_cast<int64_t>(prompt.size());
  sequence.published = hit / layout.hash_unit;
  sequence.page_tables.resize(layout.layers.size());
  make_layers(sequence.layers);

  const std::vector<BlockId> source = found.checkpoint ? store.find(*found.checkpoint)->blocks : std::vector<BlockId>();
  const int64_t shared_pages = layout.num_mla_layers == 0 ? 0 : hit / layout.cache.page_tokens;
  for (int64_t p = 0; p < shared_pages; ++p) {
    const BlockId page = found.pages[static_cast<size_t>(p)];
    TANDEM_CHECK(pool->meta(page).valid_tokens == layout.cache.page_tokens, "a shared page is full");
    pool->add_use(page);
    add_page(sequence, page);
  }
  for (int64_t p = shared_pages; p < layout.pages(hit + room_tokens); ++p) {
    const BlockId page = take_block(BlockKind::kMla, 0);
    if (p * layout.cache.page_tokens < hit) {
      copy_rows(found.pages[static_cast<size_t>(p)], page, hit - p * layout.cache.page_tokens);
    }
    add_page(sequence, page);
  }
  take_state(sequence.state);
  if (!source.empty()) {
    copy_state(source, sequence.state);
    if (const CheckpointId id_of_hit = *found.checkpoint; store.find(id_of_hit) != nullptr) {
      store.count_hit(id_of_hit);
      sequence.checkpoints.push_back(id_of_hit);
    }
  } else if (options.poison) {
    for (const BlockId block : sequence.state) pool->zero(block, layout.state_bytes);
  }
  point_states(sequence.layers, sequence.state, hit);
  set_length(sequence, hit);
  if (is_shared) {
    counts.query_tokens += sequence.prompt_tokens;
    counts.hit_tokens += hit;
    stand_on_nodes(sequence);
    if (layout.num_kda_groups > 0) {
      sequence.wanted = wanted_checkpoints(
          prompt, hit, found.latent_tokens,
          {.hash_unit = layout.hash_unit, .interval = options.checkpoint_interval, .message_end = options.message_end});
    }
  }
  return made;
}

void HybridCache::Impl::release(SeqId id) {
  CachedSequence& ending = sequence(id);
  cancel_plan(ending);
  pool->advance_clock();
  // The order of eviction among equals: dominated checkpoints, then from the last page to the first, each before the
  // checkpoints that need it.
  std::vector<CheckpointId> kept;
  for (const CheckpointId checkpoint : ending.checkpoints) {
    if (store.find(checkpoint) == nullptr) continue;
    if (!index.is_dominated(checkpoint)) {
      kept.push_back(checkpoint);
      continue;
    }
    for (const BlockId block : store.find(checkpoint)->blocks) pool->touch(block);
  }
  const auto touch_behind = [&](int64_t position) {
    while (!kept.empty() && store.find(kept.back())->position > position) {
      for (const BlockId block : store.find(kept.back())->blocks) pool->touch(block);
      kept.pop_back();
    }
  };
  for (auto p = static_cast<int64_t>(ending.pages.size()) - 1; p >= 0; --p) {
    pool->drop_use(ending.pages[static_cast<size_t>(p)]);
    touch_behind(p * layout.cache.page_tokens);
  }
  touch_behind(0);
  drop_uses(ending.state);
  leave_nodes(ending);
  sequences.erase(id.value);
}

bool HybridCache::Impl::fork(const CachedSequence& from, SeqId to) {
  TANDEM_CHECK(!sequences.contains(to.value), "a sequence is forked to a new id");
  TANDEM_CHECK(from.phase != StepPhase::kFailed, "a failed sequence can only be released");
  const int64_t length = from.committed;
  const int64_t own_pages = layout.blocks_needed(length, length) - layout.num_kda_groups;
  if (pool->num_available() < own_pages + layout.num_kda_groups) return false;
  auto made = std::make_unique<CachedSequence>();
  CachedSequence& copy = *made;
  copy.id = to;
  copy.scope = from.scope;
  copy.is_shared = from.is_shared;
  copy.is_refused = is_refused(from);
  copy.match = from.match;
  copy.tokens = from.tokens;
  copy.prompt_tokens = from.prompt_tokens;
  copy.published = from.published;
  copy.wanted = from.wanted;
  copy.next_wanted = from.next_wanted;
  copy.page_tables.resize(layout.layers.size());
  make_layers(copy.layers);
  for (int64_t p = 0; p < layout.pages(length); ++p) {
    const BlockId source = from.pages[static_cast<size_t>(p)];
    const int64_t rows = length - p * layout.cache.page_tokens;
    if (rows >= layout.cache.page_tokens) {
      pool->add_use(source);
      add_page(copy, source);
    } else {
      const BlockId page = take_block(BlockKind::kMla, 0);
      copy_rows(source, page, rows);
      add_page(copy, page);
    }
  }
  take_state(copy.state);
  copy_state(from.state, copy.state);
  point_states(copy.layers, copy.state, length);
  set_length(copy, length);
  stand_on_nodes(copy);
  sequences.emplace(to.value, std::move(made));
  return true;
}

}  // namespace tandem

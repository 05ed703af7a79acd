#include "cache/hybrid_cache.h"

#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "base/check.h"
#include "cache/hybrid_cache_impl.h"

namespace tandem {

Result<std::unique_ptr<HybridCache>> HybridCache::create(const CacheLayout& layout, const HybridCacheOptions& options) {
  if (layout.dtype != DType::kF32 && layout.dtype != DType::kBF16) {
    return Status::invalid(cat("cache type: expected F32 or BF16, found ", dtype_name(layout.dtype)));
  }
  auto pool_layout = make_pool_layout(layout, options.hash_unit, options.num_kda_groups);
  if (!pool_layout.is_ok()) return pool_layout.status();
  const PoolLayout& sizes = pool_layout.value();
  if (options.checkpoint_interval < 0 || options.checkpoint_interval % options.hash_unit != 0) {
    return Status::invalid(cat("checkpoint interval: expected a multiple of the hash unit of ", options.hash_unit,
                               " tokens, or 0, found ", options.checkpoint_interval));
  }
  if (options.checkpoints_per_chain < 1) {
    return Status::invalid(
        cat("checkpoints of a conversation: expected at least 1, found ", options.checkpoints_per_chain));
  }
  const int64_t least = sizes.blocks_needed(1, 0);
  const int64_t num_blocks = std::min<int64_t>(options.budget_bytes / sizes.block_bytes(), INT32_MAX - 1);
  if (num_blocks < least) {
    return Status::exhausted(cat("cache budget of ", options.budget_bytes, " bytes: one sequence needs ",
                                 least * sizes.block_bytes(), ", ", least, " blocks of ", sizes.block_bytes()));
  }
  auto pool = BlockPool::create(sizes, num_blocks, options.poison);
  if (!pool.is_ok()) return pool.status();
  return std::unique_ptr<HybridCache>(new HybridCache(std::make_unique<Impl>(sizes, options, std::move(pool).value())));
}

HybridCache::HybridCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HybridCache::~HybridCache() = default;

HybridCache::Impl::Impl(PoolLayout pool_layout, const HybridCacheOptions& cache_options,
                        std::unique_ptr<BlockPool> block_pool)
    : layout(std::move(pool_layout)),
      options(cache_options),
      pool(std::move(block_pool)),
      store(layout, *pool),
      index({.hash_unit = layout.hash_unit,
             .page_tokens = layout.cache.page_tokens,
             .has_kda = layout.num_kda_layers > 0,
             .has_mla = layout.num_mla_layers > 0,
             .identity = identity(),
             .max_ghosts = 65536,
             .checkpoints_per_chain = options.checkpoints_per_chain}) {}

CachedSequence& HybridCache::Impl::sequence(SeqId id) {
  const auto found = sequences.find(id.value);
  TANDEM_CHECK(found != sequences.end(), "a sequence that was admitted and not released");
  return *found->second;
}
const CachedSequence& HybridCache::Impl::sequence(SeqId id) const { return const_cast<Impl*>(this)->sequence(id); }

PrefixMatch HybridCache::match(std::span<const TokenId> tokens, const CacheScope& scope) const {
  return impl_->options.share_prefixes ? impl_->index.lookup(tokens, scope).match : impl_->cold_match(tokens);
}

int64_t HybridCache::blocks_needed(int64_t tokens, int64_t hit_tokens) const {
  return impl_->layout.blocks_needed(tokens, hit_tokens);
}
int64_t HybridCache::blocks_available() const { return impl_->pool->num_available(); }

std::optional<PrefixMatch> HybridCache::admit(SeqId id, std::span<const TokenId> prompt, const CacheScope& scope,
                                              int64_t room_tokens, bool share_prefix) {
  return impl_->admit(id, prompt, scope, room_tokens, share_prefix && impl_->options.share_prefixes);
}

bool HybridCache::prepare_step(SeqId id, int64_t num_tokens) {
  return impl_->prepare(impl_->sequence(id), num_tokens, std::nullopt);
}

SequenceCacheView HybridCache::view(SeqId id) {
  CachedSequence& sequence = impl_->sequence(id);
  TANDEM_CHECK(sequence.phase == StepPhase::kPrepared, "a view is of a prepared step");
  return {sequence.layers};
}
std::span<const PlannedCapture> HybridCache::captures(SeqId id) const { return impl_->sequence(id).planned; }

Status HybridCache::commit_step(SeqId id, std::span<const TokenId> tokens) {
  CachedSequence& sequence = impl_->sequence(id);
  return impl_->commit(sequence, tokens, sequence.step_tokens);
}

void HybridCache::abort_step(SeqId id) {
  CachedSequence& sequence = impl_->sequence(id);
  impl_->cancel_plan(sequence);
  sequence.phase = StepPhase::kFailed;
}

bool HybridCache::prepare_window(SeqId id, int64_t num_tokens, int64_t commit) {
  return impl_->prepare(impl_->sequence(id), num_tokens, commit);
}

Status HybridCache::commit_window(SeqId id, std::span<const TokenId> tokens, int64_t accepted) {
  CachedSequence& sequence = impl_->sequence(id);
  TANDEM_CHECK(sequence.window_commit.has_value(), "a window is prepared before it is committed");
  if (accepted != sequence.step_tokens && accepted != *sequence.window_commit) {
    return Status::invalid(cat("sequence ", id.value, ": ", accepted, " tokens of a window accepted; there are states ",
                               "after ", *sequence.window_commit, " and ", sequence.step_tokens));
  }
  return impl_->commit(sequence, tokens, accepted);
}

bool HybridCache::fork(SeqId from, SeqId to) { return impl_->fork(impl_->sequence(from), to); }
void HybridCache::release(SeqId id) { impl_->release(id); }

std::unique_ptr<SwappedSequence> HybridCache::swap_out(SeqId id, int64_t max_bytes) {
  return impl_->swap_out(impl_->sequence(id), max_bytes);
}
bool HybridCache::swap_in(SeqId id, const SwappedSequence& swapped, int64_t room_tokens, bool& lost) {
  return impl_->swap_in(id, swapped, room_tokens, lost);
}
int64_t HybridCache::swap_bytes(SeqId id) const { return impl_->swap_bytes(impl_->sequence(id)); }

void HybridCache::quarantine(std::span<const TokenId> tokens, const CacheScope& scope, int64_t begin) {
  impl_->apply(impl_->index.quarantine(tokens, scope, begin));
  ++impl_->num_quarantines;
}

int64_t HybridCache::length(SeqId id) const { return impl_->sequence(id).committed; }
const CacheLayout& HybridCache::layout() const { return impl_->layout.cache; }
Status HybridCache::audit(bool deep) const { return impl_->audit(deep); }

SequenceBytes HybridCache::bytes(SeqId id) const {
  const CachedSequence& sequence = impl_->sequence(id);
  const PoolLayout& layout = impl_->layout;
  SequenceBytes bytes;
  bytes.kda_state = layout.cache.state_bytes();
  bytes.mla_latent = sequence.committed * layout.cache.latent_bytes_per_token();
  const auto num_blocks = static_cast<int64_t>(sequence.pages.size() + sequence.state.size());
  bytes.padding = num_blocks * layout.block_bytes() - bytes.kda_state - bytes.mla_latent;
  return bytes;
}

HybridCacheStats HybridCache::stats() const {
  HybridCacheStats stats = impl_->counts;
  stats.block_bytes = impl_->layout.block_bytes();
  stats.num_blocks = impl_->pool->num_blocks();
  stats.free_blocks = impl_->pool->num_free();
  stats.evictable_blocks = impl_->pool->num_cached();
  stats.mla_blocks_in_use = impl_->pool->num_in_use(BlockKind::kMla);
  stats.kda_blocks_in_use = impl_->pool->num_in_use(BlockKind::kKda);
  stats.checkpoints = impl_->store.size();
  stats.indexed_units = impl_->index.num_units();
  stats.scrubbed_bytes = impl_->pool->scrubbed_bytes();
  return stats;
}

}  // namespace tandem

#include "engine/serving/cache_memory.h"

#include "base/check.h"

namespace tandem {

PrefixMatch CacheMemory::match(std::span<const TokenId> tokens, const CacheScope& scope) const {
  return cache_.match(tokens, scope);
}

int64_t CacheMemory::blocks_needed(int64_t tokens, int64_t hit_tokens) const {
  return cache_.blocks_needed(tokens, hit_tokens);
}

int64_t CacheMemory::blocks_available() const {
  return cache_.blocks_available() + (lender_ == nullptr ? 0 : lender_->lent_blocks());
}

int64_t CacheMemory::blocks_total() const { return cache_.stats().num_blocks; }

std::optional<PrefixMatch> CacheMemory::admit(SeqId id, std::span<const TokenId> tokens, const CacheScope& scope,
                                              int64_t room_tokens, bool share_prefix) {
  std::optional<PrefixMatch> match = cache_.admit(id, tokens, scope, room_tokens, share_prefix);
  if (!match && reclaim()) match = cache_.admit(id, tokens, scope, room_tokens, share_prefix);
  if (match) resident_.insert(id.value);
  return match;
}

bool CacheMemory::prepare_step(SeqId id, int64_t num_tokens) {
  return cache_.prepare_step(id, num_tokens) || (reclaim() && cache_.prepare_step(id, num_tokens));
}

void CacheMemory::release(SeqId id) {
  cache_.release(id);
  resident_.erase(id.value);
}

bool CacheMemory::fork(SeqId from, SeqId to) {
  if (!cache_.fork(from, to) && !(reclaim() && cache_.fork(from, to))) return false;
  resident_.insert(to.value);
  return true;
}

SequenceBytes CacheMemory::resident_bytes() const {
  SequenceBytes sum;
  for (const int32_t id : resident_) {
    const SequenceBytes bytes = cache_.bytes(SeqId(id));
    sum.kda_state += bytes.kda_state;
    sum.mla_latent += bytes.mla_latent;
    sum.padding += bytes.padding;
  }
  return sum;
}

int64_t CacheMemory::swap_bytes(SeqId id) const { return cache_.swap_bytes(id); }

bool CacheMemory::swap_out(SeqId id) {
  std::unique_ptr<SwappedSequence> swapped = cache_.swap_out(id, swap_limit_bytes_ - swapped_bytes_);
  if (swapped == nullptr) return false;
  swapped_bytes_ += swapped->bytes();
  resident_.erase(id.value);
  const bool is_new = swapped_.emplace(id.value, std::move(swapped)).second;
  TANDEM_CHECK(is_new, "a sequence is swapped out once");
  return true;
}

SequenceMemory::SwapIn CacheMemory::swap_in(SeqId id, int64_t room_tokens) {
  const auto at = swapped_.find(id.value);
  TANDEM_CHECK(at != swapped_.end(), "only a swapped sequence comes back");
  bool lost = false;
  bool done = cache_.swap_in(id, *at->second, room_tokens, lost);
  if (!done && !lost && reclaim()) done = cache_.swap_in(id, *at->second, room_tokens, lost);
  if (!done) return lost ? SwapIn::kLost : SwapIn::kNoRoom;
  resident_.insert(id.value);
  drop_swapped(id);
  return SwapIn::kDone;
}

void CacheMemory::drop_swapped(SeqId id) {
  const auto at = swapped_.find(id.value);
  if (at == swapped_.end()) return;
  swapped_bytes_ -= at->second->bytes();
  swapped_.erase(at);
}

}  // namespace tandem

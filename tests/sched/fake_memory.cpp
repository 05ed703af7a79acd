#include "sched/fake_memory.h"

#include <algorithm>
#include <functional>

#include "base/cat.h"

namespace tandem::test {
namespace {

constexpr int64_t kBlockBytes = 1000;

}  // namespace

FakeMemory::FakeMemory(const FakeMemoryOptions& options) : options_(options), pages_(options.total_blocks) {
  for (int64_t i = options.total_blocks - 1; i >= 0; --i) free_pages_.push_back(static_cast<int32_t>(i));
}

void FakeMemory::blame(const std::string& what) {
  if (problem_.empty()) problem_ = what;
}

uint64_t FakeMemory::extend(uint64_t key, std::span<const TokenId> tokens) {
  for (TokenId token : tokens) {
    key = (key ^ static_cast<uint64_t>(static_cast<uint32_t>(token.value) + 1)) * 0x9E3779B97F4A7C15ULL;
    key ^= key >> 29;
  }
  return key | 1;  // never 0
}

uint64_t FakeMemory::root(const CacheScope& scope) const { return std::hash<std::string>{}(scope.salt) | 1; }

FakeMemory::Hit FakeMemory::find(std::span<const TokenId> tokens, uint64_t salt) const {
  Hit hit;
  if (!options_.share_prefixes) return hit;
  std::vector<int32_t> chain;
  uint64_t key = salt;
  const int64_t page = options_.page_tokens;
  for (int64_t end = page; end < static_cast<int64_t>(tokens.size()); end += page) {
    key = extend(key, tokens.subspan(end - page, page));
    const auto place = index_.find(key);
    if (place == index_.end()) break;
    chain.push_back(place->second);
    if (checkpoints_.contains(key)) {
      hit.pages = chain;
      hit.checkpoint = key;
    }
  }
  return hit;
}

PrefixMatch FakeMemory::match(std::span<const TokenId> tokens, const CacheScope& scope) const {
  PrefixMatch match;
  match.prompt_tokens = static_cast<int64_t>(tokens.size());
  match.hash_unit = options_.page_tokens;
  match.hit_tokens = static_cast<int64_t>(find(tokens, root(scope)).pages.size()) * options_.page_tokens;
  return match;
}

int64_t FakeMemory::blocks_needed(int64_t tokens, int64_t hit_tokens) const {
  return options_.state_blocks + pages_of(tokens) - hit_tokens / options_.page_tokens;
}

int64_t FakeMemory::free_blocks() const {
  return options_.total_blocks - used_pages_ - cached_pages_ - held_blocks_ -
         options_.state_blocks * static_cast<int64_t>(sequences_.size() + checkpoints_.size());
}

int64_t FakeMemory::blocks_available() const {
  return options_.total_blocks - used_pages_ - held_blocks_ -
         options_.state_blocks * static_cast<int64_t>(sequences_.size());
}

void FakeMemory::drop_page(int32_t page) {
  Page& p = pages_[page];
  if (p.key != 0) {
    if (checkpoints_.contains(p.key)) checkpoints_.erase(p.key);
    index_.erase(p.key);
    --cached_pages_;
  }
  p = {};
  free_pages_.push_back(page);
}

// Evicts until so many blocks are free: checkpoints by age, then pages in no particular order.
bool FakeMemory::make_free(int64_t blocks, uint64_t pinned_checkpoint) {
  while (free_blocks() < blocks) {
    auto oldest = checkpoints_.end();
    for (auto i = checkpoints_.begin(); i != checkpoints_.end(); ++i) {
      if (i->first != pinned_checkpoint && (oldest == checkpoints_.end() || i->second < oldest->second)) oldest = i;
    }
    if (oldest != checkpoints_.end() && options_.state_blocks > 0) {
      checkpoints_.erase(oldest);
      continue;
    }
    const auto page =
        std::find_if(pages_.begin(), pages_.end(), [](const Page& p) { return p.users == 0 && p.key != 0; });
    if (page == pages_.end()) return false;
    drop_page(static_cast<int32_t>(page - pages_.begin()));
  }
  return true;
}

void FakeMemory::grow(Held& held, int64_t tokens) {
  while (static_cast<int64_t>(held.pages.size()) < pages_of(tokens)) {
    const int32_t page = free_pages_.back();
    free_pages_.pop_back();
    pages_[page] = {1, 0, false};
    ++used_pages_;
    held.pages.push_back(page);
  }
}

bool FakeMemory::make_room(Held& held, int64_t tokens, int64_t extra_blocks, uint64_t pinned_checkpoint) {
  const int64_t more = std::max<int64_t>(pages_of(tokens) - static_cast<int64_t>(held.pages.size()), 0);
  if (more == 0 && extra_blocks == 0) return true;
  if (!make_free(more + extra_blocks, pinned_checkpoint)) return false;
  grow(held, tokens);
  return true;
}

std::optional<PrefixMatch> FakeMemory::admit(SeqId id, std::span<const TokenId> tokens, const CacheScope& scope,
                                             int64_t room_tokens, bool share_prefix) {
  if (sequences_.contains(id.value)) blame(cat("admit: sequence ", id.value, " holds blocks already"));
  if (swapped_.contains(id.value)) blame(cat("admit: sequence ", id.value, " is swapped"));
  if (room_tokens < 1) blame(cat("admit: room for ", room_tokens, " tokens"));
  if (refuse_admissions > 0) {
    --refuse_admissions;
    return std::nullopt;
  }
  Held held;
  held.share_prefix = share_prefix;
  held.salt = root(scope);
  held.pages.reserve(options_.total_blocks);
  const Hit hit = share_prefix ? find(tokens, held.salt) : Hit{};
  for (int32_t page : hit.pages) {  // pin first
    if (pages_[page].users++ == 0) {
      ++used_pages_;
      --cached_pages_;
    }
    held.pages.push_back(page);
  }
  held.length = static_cast<int64_t>(hit.pages.size()) * options_.page_tokens;
  const int64_t length = std::min(held.length + room_tokens, static_cast<int64_t>(tokens.size()));
  if (!make_room(held, length, options_.state_blocks, hit.checkpoint)) {
    for (int32_t page : hit.pages) {
      if (--pages_[page].users == 0) {
        --used_pages_;
        ++cached_pages_;
      }
    }
    return std::nullopt;
  }
  PrefixMatch match;
  match.prompt_tokens = static_cast<int64_t>(tokens.size());
  match.hash_unit = options_.page_tokens;
  match.hit_tokens = held.length;
  sequences_.emplace(id.value, std::move(held));
  return match;
}

FakeMemory::Held& FakeMemory::at(SeqId id, const char* who) {
  if (!sequences_.contains(id.value)) blame(cat(who, ": sequence ", id.value, " holds nothing"));
  return sequences_[id.value];
}

bool FakeMemory::prepare_step(SeqId id, int64_t num_tokens) {
  Held& held = at(id, "prepare_step");
  if (held.is_aborted) blame(cat("prepare_step: sequence ", id.value, " failed a step"));
  if (held.prepared != 0) blame(cat("prepare_step: sequence ", id.value, " has a step in flight"));
  if (num_tokens < 1) blame(cat("prepare_step: ", num_tokens, " rows"));
  if (!make_room(held, held.length + num_tokens, 0, 0)) return false;
  held.prepared = num_tokens;
  return true;
}

void FakeMemory::commit(SeqId id, std::span<const TokenId> tokens) {
  Held& held = at(id, "commit");
  if (held.prepared == 0) blame(cat("commit: sequence ", id.value, " has no step"));
  held.length += held.prepared;
  held.prepared = 0;
  if (!held.share_prefix || !options_.share_prefixes) return;
  uint64_t key = held.salt;
  const int64_t size = options_.page_tokens;
  for (int64_t i = 0; (i + 1) * size <= held.length; ++i) {
    key = extend(key, tokens.subspan(i * size, size));
    Page& page = pages_[held.pages[i]];
    if (page.key != 0 || index_.contains(key)) continue;
    page.key = key;
    index_.emplace(key, held.pages[i]);
  }
  // A state is kept where the step ended on a page's end.
  const bool has_room = free_blocks() >= options_.state_blocks;
  if (held.length % size == 0 && has_room && index_.contains(key)) checkpoints_.emplace(key, ++clock_);
}

void FakeMemory::abort(SeqId id) {
  Held& held = at(id, "abort");
  held.is_aborted = true;
  held.prepared = 0;
}

void FakeMemory::release(SeqId id) {
  Held& held = at(id, "release");
  for (int32_t page : held.pages) {
    if (--pages_[page].users > 0) continue;
    --used_pages_;
    if (pages_[page].key != 0) {
      ++cached_pages_;
    } else {
      drop_page(page);
    }
  }
  sequences_.erase(id.value);
}

bool FakeMemory::fork(SeqId from, SeqId to) {
  if (sequences_.contains(to.value)) blame(cat("fork: sequence ", to.value, " holds blocks already"));
  const Held source = at(from, "fork");
  if (source.prepared != 0 || source.is_aborted) blame(cat("fork: sequence ", from.value, " is in a step"));
  Held copy = source;
  copy.pages.clear();
  copy.pages.reserve(options_.total_blocks);
  const int64_t shared = source.length / options_.page_tokens;
  for (int64_t i = 0; i < shared; ++i) {
    copy.pages.push_back(source.pages[i]);
    ++pages_[source.pages[i]].users;
  }
  if (!make_room(copy, source.length, options_.state_blocks, 0)) {
    for (int64_t i = 0; i < shared; ++i) --pages_[source.pages[i]].users;
    return false;
  }
  sequences_.emplace(to.value, std::move(copy));
  return true;
}

int64_t FakeMemory::swap_bytes(SeqId id) const {
  const auto place = sequences_.find(id.value);
  if (place == sequences_.end()) return 0;
  int64_t blocks = options_.state_blocks;
  for (int32_t page : place->second.pages) blocks += pages_[page].key == 0 ? 1 : 0;
  return blocks * kBlockBytes;
}

bool FakeMemory::swap_out(SeqId id) {
  const Held& held = at(id, "swap_out");
  if (held.prepared != 0 || held.is_aborted) blame(cat("swap_out: sequence ", id.value, " is in a step"));
  const int64_t bytes = swap_bytes(id);
  if (swap_used_ + bytes > options_.swap_bytes) return false;
  Swapped swapped;
  for (int32_t page : held.pages) {
    if (pages_[page].key == 0) break;
    swapped.keys.push_back(pages_[page].key);
  }
  swapped.held.length = held.length;
  swapped.held.share_prefix = held.share_prefix;
  swapped.held.salt = held.salt;
  swapped.held.prepared = bytes;  // remembered for the swap space
  release(id);
  swap_used_ += bytes;
  swapped_.emplace(id.value, std::move(swapped));
  return true;
}

FakeMemory::SwapIn FakeMemory::swap_in(SeqId id, int64_t room_tokens) {
  const auto place = swapped_.find(id.value);
  if (place == swapped_.end()) {
    blame(cat("swap_in: sequence ", id.value, " is not swapped"));
    return SwapIn::kLost;
  }
  Held held = place->second.held;
  held.prepared = 0;
  held.pages.reserve(options_.total_blocks);
  for (uint64_t key : place->second.keys) {
    if (!index_.contains(key)) return SwapIn::kLost;
  }
  for (uint64_t key : place->second.keys) {
    const int32_t page = index_.at(key);
    if (pages_[page].users++ == 0) {
      ++used_pages_;
      --cached_pages_;
    }
    held.pages.push_back(page);
  }
  if (!make_room(held, held.length + room_tokens, options_.state_blocks, 0)) {
    for (int32_t page : held.pages) {
      if (--pages_[page].users == 0) {
        --used_pages_;
        ++cached_pages_;
      }
    }
    return SwapIn::kNoRoom;
  }
  sequences_.emplace(id.value, std::move(held));
  drop_swapped(id);
  return SwapIn::kDone;
}

void FakeMemory::drop_swapped(SeqId id) {
  const auto place = swapped_.find(id.value);
  if (place == swapped_.end()) return blame(cat("drop_swapped: sequence ", id.value, " is not swapped"));
  swap_used_ -= place->second.held.prepared;
  swapped_.erase(place);
}

bool FakeMemory::hold(int64_t blocks) {
  if (!make_free(blocks, 0)) return false;
  held_blocks_ += blocks;
  return true;
}

void FakeMemory::give_back_held() { held_blocks_ = 0; }

void FakeMemory::evict_all() {
  checkpoints_.clear();
  for (size_t i = 0; i < pages_.size(); ++i) {
    if (pages_[i].users == 0 && pages_[i].key != 0) drop_page(static_cast<int32_t>(i));
  }
}

int64_t FakeMemory::length(SeqId id) const {
  const auto place = sequences_.find(id.value);
  return place == sequences_.end() ? -1 : place->second.length;
}

std::string FakeMemory::problem() const {
  if (!problem_.empty()) return problem_;
  int64_t users = 0;
  int64_t used = 0;
  int64_t cached = 0;
  for (const Page& page : pages_) {
    users += page.users;
    used += page.users > 0 ? 1 : 0;
    cached += page.users == 0 && page.key != 0 ? 1 : 0;
  }
  for (const auto& [id, held] : sequences_) users -= static_cast<int64_t>(held.pages.size());
  if (users != 0) return cat("pool: ", users, " users of pages that no sequence has");
  if (used != used_pages_ || cached != cached_pages_) return "pool: its counts are wrong";
  if (free_blocks() < 0) return cat("pool: ", free_blocks(), " blocks free");
  if (swapped_.empty() && swap_used_ != 0) return cat("swap space: ", swap_used_, " bytes leaked");
  return {};
}

}  // namespace tandem::test

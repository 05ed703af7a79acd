// What a prompt can reuse, and what its owner may hear of why it is not more. Positions here count hash units.
#include <algorithm>

#include "cache/prefix_index_impl.h"

namespace tandem {
namespace {

using Node = PrefixIndex::Node;

// Looking for the prompt under other salts stops after so many of them, comparing it with siblings likewise: both only
// explain, and must not take longer than the step they explain.
constexpr int64_t kMaxSaltsCompared = 1024;
constexpr int64_t kMaxSiblingsCompared = 4096;

class Lookup {
 public:
  Lookup(const PrefixTree& tree, const PrefixIndexOptions& options, std::optional<OwnerId> owner,
         std::span<const TokenId> tokens)
      : tree_(tree),
        options_(options),
        owner_(owner),
        tokens_(tokens),
        unit_(options.hash_unit),
        whole_(static_cast<int64_t>(tokens.size()) / unit_),
        max_hit_(tokens.empty() ? 0 : (static_cast<int64_t>(tokens.size()) - 1) / unit_) {}

  PrefixLookup run(std::string_view salt) {
    walk(salt);
    find_hit();
    find_known();
    PrefixLookup lookup;
    lookup.latent_tokens = latents_ * unit_;
    name_hit(lookup);
    PrefixMatch& match = lookup.match;
    match.prompt_tokens = static_cast<int64_t>(tokens_.size());
    match.hash_unit = unit_;
    match.hit_tokens = hit_ * unit_;
    match.matched_tokens = matched_ * unit_;
    match.known_tokens = known_ * unit_;
    for (int64_t i = 0; i < matched_; ++i) {
      const Node* node = path_[static_cast<size_t>(i)];
      if (node->checkpoint && (i + 1 == hit_ || is_credited(node))) match.checkpoints.push_back(node->position);
    }
    find_divergence(match);
    if (seen_ < whole_) find_other_salts(salt);
    explain(match);
    return lookup;
  }

 private:
  bool is_credited(const Node* node) const { return node->is_credited_to(owner_); }
  bool is_mentionable(const Node* node) const { return is_credited(node) || node->is_announced_by(owner_); }
  bool has_latents(const Node* node) const { return !options_.has_mla || !node->blocks.empty(); }

  std::span<const TokenId> unit_tokens(int64_t i) const {
    return tokens_.subspan(static_cast<size_t>(i * unit_), static_cast<size_t>(unit_));
  }
  const PrefixHash& inner_hash(int64_t i) {
    while (static_cast<int64_t>(inner_.size()) <= i) {
      inner_.push_back(hash_prefix_unit(unit_tokens(static_cast<int64_t>(inner_.size()))));
    }
    return inner_[static_cast<size_t>(i)];
  }

  void walk(std::string_view salt) {
    root_ = tree_.find_root(salt);
    const Node* node = root_;
    for (int64_t i = 0; node != nullptr && i < whole_; ++i) {
      node = tree_.find_child(node, unit_tokens(i), inner_hash(i));
      if (node != nullptr) path_.push_back(node);
    }
  }

  // Whoever wrote it: sharing does not ask.
  void find_hit() {
    if (options_.has_mla) {
      while (latents_ < path_size() && has_latents(path_[static_cast<size_t>(latents_)])) ++latents_;
    }
    const int64_t reachable = std::min(options_.has_mla ? latents_ : path_size(), max_hit_);
    hit_ = options_.has_kda ? deepest_checkpoint(path_, reachable) : reachable;
  }

  static int64_t deepest_checkpoint(std::span<const Node* const> path, int64_t limit) {
    while (limit > 0 && !path[static_cast<size_t>(limit - 1)]->checkpoint) --limit;
    return limit;
  }

  void find_known() {
    while (known_ < path_size()) {
      const Node* node = path_[static_cast<size_t>(known_)];
      if (known_ >= hit_ && !is_credited(node)) break;
      ++known_;
    }
    matched_ = options_.has_mla ? std::min(latents_, known_) : deepest_checkpoint(path_, known_);
    seen_ = known_;
    while (seen_ < path_size() && path_[static_cast<size_t>(seen_)]->is_announced_by(owner_)) ++seen_;
  }

  void name_hit(PrefixLookup& lookup) const {
    const int64_t units_per_page = options_.page_tokens / unit_;
    for (int64_t end = 0; options_.has_mla && end < hit_;) {
      end = std::min(end + units_per_page, hit_);
      lookup.pages.push_back(path_[static_cast<size_t>(end - 1)]->blocks.front());
    }
    if (options_.has_kda && hit_ > 0) lookup.checkpoint = path_[static_cast<size_t>(hit_ - 1)]->checkpoint;
  }

  // The owner's own child of `parent` that has most of `wanted` in common, of equals the most recent.
  const Node* closest_child(const Node* parent, std::span<const TokenId> wanted, int64_t& common) const {
    const Node* best = nullptr;
    uint64_t best_time = 0;
    int64_t num_compared = 0;
    common = 0;
    for (const Node* child = parent->first_child; child != nullptr && num_compared < kMaxSiblingsCompared;
         child = child->next_sibling, ++num_compared) {
      if (!is_mentionable(child)) continue;
      const auto differs = std::mismatch(wanted.begin(), wanted.end(), child->tokens).first;
      const int64_t length = differs - wanted.begin();
      const uint64_t time = child->find_hearer(owner_)->last_time;
      if (best != nullptr && (length < common || (length == common && time < best_time))) continue;
      best = child;
      best_time = time;
      common = length;
    }
    return best;
  }

  void find_divergence(PrefixMatch& match) const {
    const Node* last = seen_ == 0 ? root_ : path_[static_cast<size_t>(seen_ - 1)];
    const auto rest = tokens_.subspan(static_cast<size_t>(seen_ * unit_));
    const auto wanted = rest.first(std::min(rest.size(), static_cast<size_t>(unit_)));
    if (last == nullptr || wanted.empty()) return;
    int64_t common = 0;
    const Node* closest = closest_child(last, wanted, common);
    if (closest == nullptr || common == static_cast<int64_t>(wanted.size())) return;
    Divergence divergence;
    divergence.position = seen_ * unit_ + common;
    divergence.found = wanted[static_cast<size_t>(common)];
    divergence.expected = closest->tokens[common];
    std::vector<TokenId>& expected = divergence.expected_tokens;
    expected.assign(closest->tokens + common, closest->tokens + unit_);
    int64_t unused = 0;
    const Node* next = closest_child(closest, {}, unused);
    if (next != nullptr) expected.insert(expected.end(), next->tokens, next->tokens + common);
    match.divergence = std::move(divergence);
    match.hit_without_divergence = hit_behind(closest) * unit_;
  }

  // The hit if the prompt went on as the known prefix does from `child` on, which is behind what is seen.
  int64_t hit_behind(const Node* child) const {
    std::vector<const Node*> path(path_.begin(), path_.begin() + seen_);
    for (const Node* node = child; node != nullptr && static_cast<int64_t>(path.size()) < max_hit_;) {
      path.push_back(node);
      int64_t unused = 0;
      node = closest_child(node, {}, unused);
    }
    int64_t reachable = 0;
    int64_t best = hit_;
    for (; reachable < std::min(static_cast<int64_t>(path.size()), max_hit_); ++reachable) {
      const Node* node = path[static_cast<size_t>(reachable)];
      if (reachable >= hit_ && !(is_credited(node) && has_latents(node))) break;
      if (reachable >= hit_ && (!options_.has_kda || node->checkpoint)) best = reachable + 1;
    }
    return best;
  }

  void find_other_salts(std::string_view salt) {
    if (!owner_) return;
    int64_t num_compared = 0;
    for (const auto& [other, other_root] : tree_.roots()) {
      if (++num_compared > kMaxSaltsCompared) return;
      if (other == salt) continue;
      const Node* node = other_root;
      for (int64_t i = 0; i < whole_; ++i) {
        node = tree_.find_child(node, unit_tokens(i), inner_hash(i));
        if (node == nullptr || !is_credited(node) || !has_latents(node)) break;
        if (options_.has_mla || node->checkpoint) salted_ = std::max(salted_, i + 1);
      }
    }
  }

  // Why no KDA state serves unit i, states being looked for up to `limit`.
  MissReason missing_state(int64_t i, int64_t limit) const {
    for (; i < limit; ++i) {
      const Node* node = path_[static_cast<size_t>(i)];
      if (node->lost_checkpoint) return *node->lost_checkpoint;
    }
    return MissReason::kNoCheckpoint;
  }

  MissReason reason(int64_t i) const {
    const int64_t resumable = std::min(matched_, max_hit_);
    if (i < resumable) return missing_state(i, resumable);
    if (i < matched_) return MissReason::kLastToken;
    if (i < seen_ && path_[static_cast<size_t>(i)]->is_announced_by(owner_)) return MissReason::kNotYetWritten;
    if (i < known_) return options_.has_mla ? path_[static_cast<size_t>(i)]->lost_latents : missing_state(i, known_);
    return i < salted_ ? MissReason::kSalt : MissReason::kNeverSeen;
  }

  void explain(PrefixMatch& match) const {
    for (int64_t i = hit_; i < whole_; ++i) add_range(match, i * unit_, (i + 1) * unit_, reason(i));
    add_range(match, whole_ * unit_, match.prompt_tokens, MissReason::kShorterThanUnit);
  }

  static void add_range(PrefixMatch& match, int64_t begin, int64_t end, MissReason why) {
    if (begin == end) return;
    if (!match.missed.empty() && match.missed.back().reason == why) {
      match.missed.back().end = end;
    } else {
      match.missed.push_back({begin, end, why});
    }
  }

  int64_t path_size() const { return static_cast<int64_t>(path_.size()); }

  const PrefixTree& tree_;
  const PrefixIndexOptions& options_;
  std::optional<OwnerId> owner_;
  std::span<const TokenId> tokens_;
  int64_t unit_;
  int64_t whole_;    // units in the prompt
  int64_t max_hit_;  // leaving a token to compute

  const Node* root_ = nullptr;
  std::vector<const Node*> path_;  // the prompt's units that are in the tree
  std::vector<PrefixHash> inner_;
  int64_t latents_ = 0;  // leading units with latents
  int64_t hit_ = 0;
  int64_t matched_ = 0;  // from here on: what the owner may hear of
  int64_t known_ = 0;    // computed once
  int64_t seen_ = 0;     // computed once or being computed
  int64_t salted_ = 0;   // cached under another salt
};

}  // namespace

PrefixLookup PrefixIndex::lookup(std::span<const TokenId> tokens, const CacheScope& scope) const {
  return Lookup(impl_->tree, impl_->options, impl_->find_owner(scope.owner), tokens).run(scope.salt);
}

}  // namespace tandem

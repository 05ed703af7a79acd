#include "cache/prefix_oracle.h"

namespace tandem::test {
namespace {

size_t common_length(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

int64_t PrefixOracle::hit(const std::string& salt, const std::string& tokens) const {
  int64_t best = 0;
  for (int64_t length = options_.hash_unit; length < size(tokens); length += options_.hash_unit) {
    const std::string boundary = cut(salt, tokens, length);
    if (options_.has_mla && !has_latents(boundary)) break;
    if (!options_.has_kda || checkpoint(boundary)) best = length;
  }
  return best;
}

std::optional<std::string> PrefixOracle::closest(const std::string& last, std::string_view wanted,
                                                 const std::string& owner) const {
  std::optional<std::string> best;
  std::pair<size_t, uint64_t> best_rank;
  for (const std::string& child : children(last)) {
    if (!is_credited(child, owner) && !is_announced(child, owner)) continue;
    const size_t common = common_length(wanted, std::string_view(child).substr(last.size()));
    const std::pair<size_t, uint64_t> rank(common, find(child).hearers.at(owner).time);
    if (best && rank < best_rank) continue;
    best = child;
    best_rank = rank;
  }
  return best;
}

void PrefixOracle::diverge(PrefixMatch& match, const std::string& salt, const std::string& tokens,
                           const std::string& owner, int64_t seen) const {
  const std::string last = cut(salt, tokens, seen);
  const std::string wanted = tokens.substr(static_cast<size_t>(seen), unit());
  std::optional<std::string> known = wanted.empty() ? std::nullopt : closest(last, wanted, owner);
  if (!known) return;
  const size_t common = common_length(wanted, known->substr(last.size()));
  if (common == wanted.size()) return;
  // The known prefix as far as it goes, the most recent continuation at every fork.
  std::string continued = *known;
  while (const auto next = closest(continued, "", owner)) continued = *next;
  const std::string expected = continued.substr(last.size() + common, unit());
  Divergence divergence;
  divergence.position = seen + static_cast<int64_t>(common);
  divergence.found = TokenId(wanted[common]);
  divergence.expected = TokenId(expected[0]);
  for (const char token : expected) divergence.expected_tokens.emplace_back(token);
  match.divergence = divergence;
  match.hit_without_divergence = match.hit_tokens;
  const std::string repaired = continued.substr(continued.find('|') + 1);
  for (int64_t length = match.hit_tokens + options_.hash_unit; length < size(tokens); length += options_.hash_unit) {
    if (length > size(repaired)) break;
    const std::string boundary = cut(salt, repaired, length);
    if (!is_credited(boundary, owner) || (options_.has_mla && !has_latents(boundary))) break;
    if (!options_.has_kda || checkpoint(boundary)) match.hit_without_divergence = length;
  }
}

MissReason PrefixOracle::missing_state(const std::string& salt, const std::string& tokens, const std::string& owner,
                                       int64_t end, int64_t limit) const {
  for (; end <= limit; end += options_.hash_unit) {
    const std::string boundary = cut(salt, tokens, end);
    if (find(boundary).lost_checkpoint && is_credited(boundary, owner)) return *find(boundary).lost_checkpoint;
  }
  return MissReason::kNoCheckpoint;
}

PrefixMatch PrefixOracle::match(const std::string& salt, const std::string& tokens, const std::string& owner) const {
  const int64_t u = options_.hash_unit;
  const int64_t whole = size(tokens) / u * u;
  const int64_t longest_hit = tokens.empty() ? 0 : (size(tokens) - 1) / u * u;
  PrefixMatch match;
  match.prompt_tokens = size(tokens);
  match.hash_unit = u;
  match.hit_tokens = hit(salt, tokens);
  const auto may_hear = [&](int64_t end) {
    const std::string boundary = cut(salt, tokens, end);
    return end <= match.hit_tokens || (find(boundary).is_written && is_credited(boundary, owner));
  };
  while (match.known_tokens < whole && may_hear(match.known_tokens + u)) match.known_tokens += u;
  int64_t seen = match.known_tokens;
  while (seen < whole && is_announced(cut(salt, tokens, seen + u), owner)) seen += u;
  for (int64_t end = u; end <= match.known_tokens; end += u) {
    const bool cached = is_cached(cut(salt, tokens, end));
    if (cached) match.matched_tokens = end;
    if (!cached && options_.has_mla) break;
  }
  for (int64_t end = u; end <= match.matched_tokens; end += u) {
    const std::string boundary = cut(salt, tokens, end);
    if (!checkpoint(boundary)) continue;
    if (end == match.hit_tokens || is_credited(boundary, owner)) match.checkpoints.push_back(end);
  }
  diverge(match, salt, tokens, owner, seen);

  int64_t elsewhere = 0;
  std::set<std::string> salts;
  for (const auto& [key, prefix] : prefixes_) salts.insert(key.substr(0, key.find('|')));
  salts.erase(salt);
  for (const std::string& other : salts) {
    for (int64_t end = u; end <= whole; end += u) {
      const std::string boundary = cut(other, tokens, end);
      if (!is_credited(boundary, owner) || (options_.has_mla && !has_latents(boundary))) break;
      if (is_cached(boundary)) elsewhere = std::max(elsewhere, end);
    }
  }
  // Token by token, then equal neighbours joined.
  for (int64_t token = match.hit_tokens; token < size(tokens); ++token) {
    const int64_t end = (token / u + 1) * u;
    const std::string boundary = end <= whole ? cut(salt, tokens, end) : "";
    MissReason why = end <= elsewhere ? MissReason::kSalt : MissReason::kNeverSeen;
    const int64_t resumable = std::min(match.matched_tokens, longest_hit);
    if (end > whole) {
      why = MissReason::kShorterThanUnit;
    } else if (end <= resumable) {
      why = missing_state(salt, tokens, owner, end, resumable);
    } else if (end <= match.matched_tokens) {
      why = MissReason::kLastToken;
    } else if (end <= seen && is_announced(boundary, owner)) {
      why = MissReason::kNotYetWritten;
    } else if (end <= match.known_tokens) {
      why =
          options_.has_mla ? find(boundary).lost_latents : missing_state(salt, tokens, owner, end, match.known_tokens);
    }
    if (match.missed.empty() || match.missed.back().reason != why) match.missed.push_back({token, token, why});
    match.missed.back().end = token + 1;
  }
  return match;
}

bool PrefixOracle::is_dominated(int32_t id) const {
  for (const auto& [key, prefix] : prefixes_) {
    if (prefix.checkpoint != id) continue;
    for (const auto& [deeper, other] : prefixes_) {
      if (deeper.size() <= key.size() || !deeper.starts_with(key) || !other.checkpoint) continue;
      bool is_same_chain = true;
      for (std::string between = parent(deeper); between.size() >= key.size(); between = parent(between)) {
        is_same_chain = is_same_chain && !is_branching(between);
      }
      if (is_same_chain) return true;
    }
  }
  return false;
}

void PrefixOracle::thin_out(const std::string& added, Loss& loss) {
  while (true) {
    std::vector<std::string> chain;  // all on one line, no branching point from the first to the last
    for (const auto& [key, prefix] : prefixes_) {
      if (!prefix.checkpoint || !(added.starts_with(key) || key.starts_with(added))) continue;
      std::string between = std::max(key, added, [](const auto& a, const auto& b) { return a.size() < b.size(); });
      bool is_same_chain = true;
      for (; between.size() >= std::min(key.size(), added.size()); between = parent(between)) {
        is_same_chain = is_same_chain && !is_branching(between);
      }
      if (is_same_chain) chain.push_back(key);
    }
    if (static_cast<int64_t>(chain.size()) <= options_.checkpoints_per_chain) return;
    std::sort(chain.begin(), chain.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
    std::vector<std::pair<int, std::string>> ranked;
    for (size_t i = 0; i < chain.size(); ++i) {
      const CheckpointReason reason = prefixes_[chain[i]].reason;
      int newer = 0;
      for (size_t j = i + 1; j < chain.size(); ++j) newer += prefixes_[chain[j]].reason == reason ? 1 : 0;
      int rank = 1;
      if (reason == CheckpointReason::kInterval) rank = newer == 0 ? 3 : 0;
      if (reason == CheckpointReason::kTurn && newer < 2) rank = 4;
      if (reason == CheckpointReason::kJunction) rank = 5;
      const bool is_prompt = reason == CheckpointReason::kPromptEnd || reason == CheckpointReason::kPromptEndInclusive;
      if (is_prompt && newer == 0) rank = 2;
      if (chain[i] != added) ranked.emplace_back(rank, chain[i]);
    }
    const auto victim = std::min_element(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
      return std::pair(a.first, a.second.size()) < std::pair(b.first, b.second.size());
    });
    drop_checkpoint(prefixes_[victim->second], MissReason::kEvicted, loss);
  }
}

}  // namespace tandem::test

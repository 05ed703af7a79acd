// cache/prefix_match.h: what the cache knows of a prompt, and why it cannot give more. Plain data.
//
//   Lengths are tokens counted from the prompt's start. hit ≤ matched ≤ known ≤ prompt. A hit is the longest boundary
//   where the chain of MLA latents and every group of KDA states agree, and leaves at least one token to compute.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace tandem {

// Whose prefixes a request may share and hear of.
struct CacheScope {
  std::string salt;   // part of every hash: prefixes under different salts never meet
  std::string owner;  // explanations mention another salt's prefix only when the same owner wrote it
};

enum class MissReason {
  kNeverSeen,        // the prompt diverges here from everything known, or nothing longer was ever computed
  kEvicted,          // it was cached and has been evicted
  kNotYetWritten,    // another request is computing it now
  kSalt,             // the same tokens are cached under another salt of the same owner
  kShorterThanUnit,  // the tail of the prompt is no whole hash unit
  kNoCheckpoint,     // the latents are there, but no KDA state at or behind this place
  kLastToken,        // the last token is always computed: its logits are wanted
  kQuarantined,      // verification found it wrong
};
std::string_view miss_reason_name(MissReason reason);  // "never_seen", "evicted", …

// Tokens [begin, end) of the prompt are computed although …
struct MissedRange {
  int64_t begin = 0;
  int64_t end = 0;
  MissReason reason = MissReason::kNeverSeen;
  bool operator==(const MissedRange&) const = default;
};

struct Divergence {
  int64_t position = 0;  // the first token that differs
  TokenId found;         // what the prompt has there
  TokenId expected;      // what the closest known prefix has there
  // Tokens of that known prefix from `position` on, as many as are kept of it, at most one hash unit.
  std::vector<TokenId> expected_tokens;
};

struct PrefixMatch {
  int64_t prompt_tokens = 0;
  int64_t hash_unit = 0;
  int64_t hit_tokens = 0;                // resumed from here
  int64_t matched_tokens = 0;            // MLA latents present, in whole units
  int64_t known_tokens = 0;              // computed at some time, evicted since or not
  std::vector<int64_t> checkpoints;      // positions of usable KDA states on the matched chain, ascending
  std::optional<Divergence> divergence;  // none: the prompt extends, or is part of, what is known
  std::vector<MissedRange> missed;       // covers [hit_tokens, prompt_tokens), ascending, without gaps
  // What a repair would give: the hit if the prompt did not diverge, or 0 when there is no divergence.
  int64_t hit_without_divergence = 0;
};

}  // namespace tandem

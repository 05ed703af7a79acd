#include "cache/cached_sequence.h"

#include <algorithm>
#include <map>

namespace tandem {
namespace {

// What outlives what when one state serves several purposes.
int rank(CheckpointReason reason) {
  switch (reason) {
    case CheckpointReason::kJunction: return 4;
    case CheckpointReason::kTurn: return 3;
    case CheckpointReason::kPromptEndInclusive: return 2;
    case CheckpointReason::kPromptEnd: return 1;
    case CheckpointReason::kInterval: return 0;
  }
  return 0;
}

}  // namespace

std::vector<WantedCheckpoint> wanted_checkpoints(std::span<const TokenId> prompt, int64_t hit, int64_t latent_tokens,
                                                 const WantedOptions& options) {
  const auto length = static_cast<int64_t>(prompt.size());
  const int64_t unit = options.hash_unit;
  std::map<int64_t, CheckpointReason> wanted;
  const auto want = [&](int64_t position, CheckpointReason reason) {
    if (position <= hit || position > length) return;
    const auto [at, is_new] = wanted.emplace(position, reason);
    if (!is_new && rank(reason) > rank(at->second)) at->second = reason;
  };
  want((length - 1) / unit * unit, CheckpointReason::kPromptEnd);
  if (length % unit == 0) want(length, CheckpointReason::kPromptEndInclusive);
  want(latent_tokens / unit * unit, CheckpointReason::kJunction);
  if (options.interval > 0) {
    for (int64_t at = (hit / options.interval + 1) * options.interval; at <= length; at += options.interval) {
      want(at, CheckpointReason::kInterval);
    }
  }
  if (options.message_end) {
    int64_t found = 0;
    int64_t last = length + 1;
    for (int64_t i = length - 1; i >= 0 && found < 2; --i) {
      if (prompt[static_cast<size_t>(i)] != *options.message_end) continue;
      const int64_t position = (i + 1) / unit * unit;
      if (position == last) continue;  // two short messages ending in one unit are one boundary
      last = position;
      ++found;
      want(position, CheckpointReason::kTurn);
    }
  }
  std::vector<WantedCheckpoint> ascending;
  for (const auto& [position, reason] : wanted) ascending.push_back({.position = position, .reason = reason});
  return ascending;
}

}  // namespace tandem

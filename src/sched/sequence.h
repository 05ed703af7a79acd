// sched/sequence.h: what the scheduler keeps of one sequence. Plain data, owned by the scheduler.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "cache/prefix_match.h"

namespace tandem {

// kWaiting: holds no memory. kRunning: holds blocks. kSwapped: preempted, its tokens' states kept outside the pool.
enum class SequencePhase { kWaiting, kRunning, kSwapped };

struct Sequence {
  SeqId id;
  std::vector<TokenId> tokens;  // known: prompt and generated
  CacheScope scope;
  bool share_prefix = true;
  int64_t prompt_tokens = 0;
  int64_t max_new_tokens = 0;
  std::optional<int64_t> cost_class;  // known since it first waited
  int32_t priority = 0;
  double arrived = 0;
  double rank = 0;     // the lower the sooner, see ranks_before()
  int64_t number = 0;  // order of add()

  SequencePhase phase = SequencePhase::kWaiting;
  int64_t num_computed_tokens = 0;
  int64_t expected_hit = 0;  // while waiting: tokens that the memory was last seen to have of it
  PrefixMatch match;         // of the last admission
  bool is_settled = false;   // in the plan being made: has its rows, or cannot have any

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_uncomputed_tokens() const { return num_tokens() - num_computed_tokens; }
  bool is_decode() const { return num_uncomputed_tokens() == 1; }
};

// Everybody ages alike: of two waiting sequences, priority − waited / aging_seconds keeps its order for ever. So the
// rank, priority · aging_seconds + arrived, never changes, and a stream of newcomers of any priority is overtaken by
// its arrival times. The first in this order is never preempted while another runs: something always finishes.
inline bool ranks_before(const Sequence& a, const Sequence& b) {
  return a.rank != b.rank ? a.rank < b.rank : a.number < b.number;
}

}  // namespace tandem

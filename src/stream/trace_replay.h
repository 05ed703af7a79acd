// stream/trace_replay.h: a recorded routing trace, replayed against caches of experts of a given size.
//
//   A trace has a line of JSON for each token: {"tok": 0, "layers": [[ids of layer 0, ascending], …]}. The cache is
//   shared by all layers. A step of a layer counts a hit for each needed expert that has memory when the step begins;
//   the others are read. Belady's optimum (1966) knows the future: it gives up the expert needed last, and reads
//   without keeping what is needed later than all it holds. No policy that reads only what is needed has more hits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "stream/expert_policy.h"

namespace tandem {

struct RecordedTrace {
  int64_t num_layers = 0;
  int64_t num_experts = 0;                                // of a layer
  std::vector<std::vector<std::vector<int32_t>>> tokens;  // [token][layer]: ids
  int64_t num_needs = 0;                                  // of experts, over all tokens and layers
};

// num_experts 0: one more than the largest id. `name` opens every message.
Result<RecordedTrace> parse_trace(std::string_view text, const std::string& name, int64_t num_experts = 0);

// What the store does, without the reading: the experts of the step at hand are pinned.
int64_t replay_hits(const RecordedTrace& trace, ExpertPolicy& policy, int64_t capacity);

// Must every expert that is read be kept, or may it be used and dropped at once?
enum class BeladyAdmission { kAlways, kMayBypass };
int64_t belady_hits(const RecordedTrace& trace, int64_t capacity, BeladyAdmission admission);

// The experts needed most over the whole trace are kept from their first need on: frequencies known perfectly.
int64_t frequency_hits(const RecordedTrace& trace, int64_t capacity);

struct ReplayRow {
  double percent = 0;                                               // of all experts of all layers
  int64_t capacity = 0;                                             // experts
  int64_t lru = 0, lfru = 0, reuse = 0, frequency = 0, belady = 0;  // hits
};

struct ReplayReport {
  int64_t num_tokens = 0, num_layers = 0, num_experts = 0, num_needs = 0;
  std::vector<ReplayRow> rows;
};

Result<ReplayReport> replay_trace(const RecordedTrace& trace, const std::vector<double>& percents);

std::string replay_text(const ReplayReport& report);
std::string replay_json(const ReplayReport& report);

}  // namespace tandem

// apps/tandem/stream_output.h: what a stream of experts did, for people and for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "stream/expert_store.h"

namespace tandem::app {

// hit_rate counts what was in memory; of what was not, `ahead` was under way when it was asked for.
nlohmann::ordered_json stream_json(const ExpertStoreStats& stats, int64_t num_slots, int64_t num_experts);
std::string stream_line(const ExpertStoreStats& stats);

}  // namespace tandem::app

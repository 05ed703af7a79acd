// server/cache_report.h: what the cache knew of a prompt, as JSON. Lengths are tokens of the whole prompt.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/api_context.h"

namespace tandem {

// The reason that most of what was missed is about: the last token's is only given when there is no other.
MissReason main_reason(const PrefixMatch& match);

// usage.cache: hit, matched, reason, divergence and seconds, of a request that runs; empty when the engine does not
// know.
std::string compact_cache_json(EngineService& engine, const std::string& request_id, const std::string& owner);

// The whole explanation: what hit, where the prompt leaves the closest known prefix, the nearest checkpoint, why the
// rest is computed and what it would have saved, and the edit that restores reuse.
std::string explanation_json(const CacheExplanation& explanation, const ApiContext& context, std::string_view object,
                             std::vector<int64_t> message_numbers = {});

}  // namespace tandem

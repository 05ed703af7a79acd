// server/cache_report.h: what the cache knew of a prompt, as JSON. Lengths are tokens of the whole prompt.
#pragma once

#include <string>

#include "engine/service.h"
#include "text/tokenizer.h"

namespace tandem {

// The reason that most of what was missed is about: the last token's is only given when there is no other.
MissReason main_reason(const PrefixMatch& match);

// usage.cache: hit, matched, reason, divergence and seconds, of a request that runs; empty when the engine does not
// know.
std::string compact_cache_json(EngineService& engine, const std::string& request_id, const std::string& owner);

}  // namespace tandem

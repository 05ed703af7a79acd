#include "server/cache_report.h"

#include "base/cat.h"

namespace tandem {

MissReason main_reason(const PrefixMatch& match) {
  const MissedRange* largest = nullptr;
  for (const MissedRange& range : match.missed) {
    if (range.reason == MissReason::kLastToken) continue;
    if (largest == nullptr || range.end - range.begin > largest->end - largest->begin) largest = &range;
  }
  return largest == nullptr ? MissReason::kLastToken : largest->reason;
}

std::string compact_cache_json(EngineService& engine, const std::string& request_id, const std::string& owner) {
  const auto explained = engine.explain(request_id, owner);
  if (!explained.is_ok()) return {};
  const PrefixMatch& match = explained.value().match;
  const double seconds = explained.value().prefill_token_seconds;
  return cat(R"({"hit_tokens":)", match.hit_tokens, R"(,"matched_tokens":)", match.matched_tokens, R"(,"reason":")",
             miss_reason_name(main_reason(match)), R"(","divergence":)",
             match.divergence ? cat(match.divergence->position) : "null", R"(,"saved_seconds":)",
             static_cast<double>(match.hit_tokens) * seconds, R"(,"missed_seconds":)",
             static_cast<double>(match.prompt_tokens - match.hit_tokens) * seconds, "}");
}

}  // namespace tandem

#include "server/cache_report.h"

#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "base/utf8.h"
#include "server/cache_advice.h"
#include "server/prompt_map.h"
#include "text/reply_json.h"

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

namespace {

std::string quoted(std::string_view text) { return cat('"', json_escaped(replace_invalid_utf8(text)), '"'); }

std::string token_json(const Tokenizer& tokenizer, TokenId id) {
  return cat(R"({"id":)", id.value, R"(,"text":)", tokenizer.contains(id) ? quoted(tokenizer.token_bytes(id)) : "null",
             "}");
}

std::string place_json(const PromptPlace& place) {
  return cat(R"({"field":)", quoted(place.field()), R"(,"message":)", place.message ? cat(*place.message) : "null",
             R"(,"role":)", place.role.empty() ? "null" : quoted(place.role), "}");
}

std::string divergence_json(const Divergence& divergence, const Tokenizer& tokenizer, const PromptMap& map,
                            const CacheAdvice& advice) {
  return cat(R"({"position":)", divergence.position, R"(,"found":)", token_json(tokenizer, divergence.found),
             R"(,"expected":)", token_json(tokenizer, divergence.expected), R"(,"found_text":)", quoted(advice.found),
             R"(,"expected_text":)", quoted(advice.expected), R"(,"place":)", place_json(map.at(divergence.position)),
             "}");
}

}  // namespace

std::string explanation_json(const CacheExplanation& explanation, const ApiContext& context, std::string_view object,
                             std::vector<int64_t> message_numbers) {
  const PrefixMatch& match = explanation.match;
  const double seconds = explanation.prefill_token_seconds;
  const PromptMap map(context.tokenizer, context.chat_format, explanation.prompt, message_numbers);
  const CacheAdvice advice =
      cache_advice({context.tokenizer, context.chat_format, explanation.prompt, match, std::move(message_numbers)});
  std::string checkpoints;
  std::optional<int64_t> nearest;  // at or before the place where reuse ends
  const int64_t limit = match.divergence ? match.divergence->position : match.prompt_tokens;
  for (const int64_t checkpoint : match.checkpoints) {
    checkpoints += cat(checkpoints.empty() ? "" : ",", checkpoint);
    if (checkpoint <= limit) nearest = checkpoint;
  }
  std::string missed;
  for (const MissedRange& range : match.missed) {
    const int64_t tokens = range.end - range.begin;
    missed += cat(missed.empty() ? "" : ",", R"({"begin":)", range.begin, R"(,"end":)", range.end, R"(,"tokens":)",
                  tokens, R"(,"reason":")", miss_reason_name(range.reason), R"(","seconds":)",
                  static_cast<double>(tokens) * seconds, R"(,"place":)", place_json(map.at(range.begin)), "}");
  }
  const int64_t more = std::max<int64_t>(0, match.hit_without_divergence - match.hit_tokens);
  return cat(R"({"object":")", object, R"(","request":)",
             explanation.request_id.empty() ? "null" : quoted(explanation.request_id), R"(,"prompt_tokens":)",
             match.prompt_tokens, R"(,"hit_tokens":)", match.hit_tokens, R"(,"matched_tokens":)", match.matched_tokens,
             R"(,"known_tokens":)", match.known_tokens, R"(,"hash_unit":)", match.hash_unit, R"(,"reason":")",
             miss_reason_name(main_reason(match)), R"(","salt":)", quoted(explanation.salt_used), R"(,"checkpoints":[)",
             checkpoints, R"(],"nearest_checkpoint":)", nearest ? cat(*nearest) : "null", R"(,"divergence":)",
             match.divergence ? divergence_json(*match.divergence, context.tokenizer, map, advice) : "null",
             R"(,"missed":[)", missed, R"(],"saved_seconds":)", static_cast<double>(match.hit_tokens) * seconds,
             R"(,"missed_seconds":)", static_cast<double>(match.prompt_tokens - match.hit_tokens) * seconds,
             R"(,"edit":{"cause":")", edit_cause_name(advice.cause), R"(","field":)",
             advice.field.empty() ? "null" : quoted(advice.field), R"(,"message":)", quoted(advice.message),
             R"(,"would_hit_tokens":)", match.hit_tokens + more, R"(,"would_save_tokens":)", more,
             R"(,"would_save_seconds":)", static_cast<double>(more) * seconds, "}}");
}

}  // namespace tandem

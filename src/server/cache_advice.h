// server/cache_advice.h: the edit of a request that would let the cache serve more of it, in words.
#pragma once

#include <string>

#include "cache/prefix_match.h"
#include "server/prompt_map.h"

namespace tandem {

enum class EditCause {
  kNone,               // nothing to edit
  kStrippedReasoning,  // the earlier turn's reasoning was not sent back
  kOtherReasoning,     // or was changed
  kSystemPrompt,
  kToolsOrder,
  kTools,
  kEffort,     // how hard to think, or whether to
  kTimestamp,  // a time, a date, a counter
  kWhiteSpace,
  kRoles,  // another message stands here: one was dropped, added or edited
  kToolCall,
  kText,
  kSalt,
};
std::string_view edit_cause_name(EditCause cause);  // "stripped_reasoning", …

struct CacheAdvice {
  EditCause cause = EditCause::kNone;
  std::string field;     // "messages[3].reasoning_content"; empty: none
  std::string message;   // a sentence for people
  std::string found;     // what the prompt has from the divergence on, some characters of the element
  std::string expected;  // what the closest cached prefix has
};

struct ExplainedPrompt {
  const Tokenizer& tokenizer;
  std::optional<ChatFormat> format;
  const std::vector<TokenId>& prompt;
  const PrefixMatch& match;
  std::vector<int64_t> message_numbers = {};
};

CacheAdvice cache_advice(const ExplainedPrompt& explained);

}  // namespace tandem

// server/prompt_map.h: which field of a chat request the tokens of its prompt come from, read off the prompt itself.
//
//   Only control ids make structure, and no text of a user can hold one, so the ids alone tell messages and elements
//   apart; a prompt that stops inside an element is fine. Prompts of no chat format are one place, `prompt`.
//   Immutable once read: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/chat_format.h"
#include "text/tokenizer.h"

namespace tandem {

enum class PromptPart {
  kPrompt,          // a raw prompt
  kTools,           // the declaration at the top
  kEffort,          // the thinking-effort note
  kToolChoice,      // note
  kResponseFormat,  // note
  kHeader,          // a message's own tag: its role, its name
  kContent,
  kReasoning,
  kToolCall,
};

// Tokens [begin, end) of one element; its tags belong to it.
struct PromptPlace {
  PromptPart part = PromptPart::kPrompt;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t body_begin = 0;          // behind its opening tag
  std::optional<int64_t> message;  // of the conversation, from 0
  std::string role;                // of the message
  std::string detail;              // kToolCall: "[0].function.arguments.path" or "[0].function.name"

  std::string field() const;  // "messages[3].reasoning_content", "tools", …
};

class PromptMap {
 public:
  // `message_numbers`: of rendered message i, its number in the request; empty: they are the same.
  PromptMap(const Tokenizer& tokenizer, std::optional<ChatFormat> format, std::span<const TokenId> prompt,
            std::vector<int64_t> message_numbers = {});

  const PromptPlace& at(int64_t position) const;  // of [0, prompt size); the last place for what is behind
  const std::vector<PromptPlace>& places() const { return places_; }

 private:
  std::vector<PromptPlace> places_;  // ascending, without gaps
};

}  // namespace tandem

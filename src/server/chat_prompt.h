// server/chat_prompt.h: a chat body as prompt ids, and what a reply to it needs to be read.
#pragma once

#include <cstdint>
#include <vector>

#include "server/api_context.h"
#include "text/chat_message.h"
#include "text/reply_parser.h"
#include "text/segment.h"

namespace tandem {

struct ChatPrompt {
  ChatRequest request;
  std::vector<Segment> segments;
  std::vector<TokenId> ids;
  ChatFormat format = ChatFormat::kXtml;
  ReplyOptions reply;          // how the reply is parsed
  int64_t opener_tokens = 0;   // of the channel left open at the end: not counted as the client's prompt
  bool parallel_calls = true;  // false: the reply ends with its first call
};

// Refusals begin with the path of the field. kUnsupported: the tokenizer speaks no chat format. Response formats and
// tool choices act by their notes in the prompt alone: nothing constrains what the model draws.
Result<ChatPrompt> read_chat_prompt(const JsonValue& body, const ApiContext& context);

// The ids that an open channel of the format ends a prompt with, one list for each channel.
std::vector<std::vector<TokenId>> channel_openers(const Tokenizer& tokenizer, ChatFormat format);

}  // namespace tandem

// apps/tandem/chat_session.h: a conversation with a model: history, rendering, generation, reading of replies.
//
//   Every prompt is the whole history, rendered anew; the generator continues from its cache when the history's tokens
//   extend what the cache holds, which they do as long as the model's own text encodes back to the tokens it wrote.
#pragma once

#include <string>
#include <vector>

#include "base/function_ref.h"
#include "engine/generate.h"
#include "text/chat_format.h"
#include "text/reply_parser.h"

namespace tandem::app {

struct ChatTurn {
  GenerateResult result;
  std::string text;  // everything generated, control names spelled out
  ParsedReply reply;
};

class ChatSession {
 public:
  // Needs a tokenizer with the control names of a chat format; the refusal names what is missing.
  static Result<ChatSession> create(LoadedModel& model);

  // The tokens of history and this user message, thinking on at effort max, up to where the model's turn begins.
  Result<std::vector<TokenId>> prompt_for(const std::string& user_text);

  // Generates the reply to the last prompt_for(), reports it as it comes and adds both messages to the history.
  Result<ChatTurn> run(const GenerateRequest& request, FunctionRef<void(const ReplyEvent&)> on_event);

 private:
  ChatSession(LoadedModel& model, const Tokenizer& tokenizer, ChatFormat format);

  const Tokenizer* tokenizer_;
  ChatFormat format_;
  Generator generator_;
  std::vector<Message> history_;
  std::vector<Message> pending_;  // the user message of the last prompt_for()
};

}  // namespace tandem::app

// text/k2_reply_parser.h: the state machine over a reply of the Kimi K2 family. Part of reply_parser.h; not for others.
//
//   THINK ⇄ CONTENT → SECTION → ID → ARGUMENTS → SECTION → CONTENT
//   <think> and </think> border thinking; a tool section begins and ends with its markers and may interrupt thinking.
//   Each call is <|tool_call_begin|> ID <|tool_call_argument_begin|> JSON <|tool_call_end|>, of any length; the JSON is
//   passed on as it stands. ID is natively functions.NAME:N. A missing <|tool_call_end|> is made up for by the next
//   call's begin or the section's end. An ID that tells no name (call_abc) means the only declared tool; where there is
//   not exactly one, the call's text is content.
//   Credits: the accepted spellings come from the K2 parsers of vLLM, SGLang and llama.cpp.
#pragma once

#include <memory>

#include "base/result.h"
#include "text/reply_builder.h"
#include "text/reply_grammar.h"

namespace tandem {

// `tokenizer` and `builder` outlive the grammar. Needed names: <|im_end|>; </think> when the prompt opened thinking;
// the names of the tool section, unless the vocabulary has none of them.
Result<std::unique_ptr<ReplyGrammar>> create_k2_reply_grammar(const Tokenizer& tokenizer, const ReplyOptions& options,
                                                              ReplyBuilder& builder);

// The function's name in a call's ID: behind the last dot, before the last colon. Empty when ID has neither.
std::string_view k2_name_in_id(std::string_view id);

}  // namespace tandem

// text/xtml_reply_parser.h: the state machine over a reply of Kimi K3. Part of reply_parser.h; not for others.
//
//   THINK ⇄ TOP ⇄ RESPONSE        TOP → TOOLS → CALL → ARGUMENT | JSON        any → ENDED → FINISHED
//   <|open|> and <|close|> begin a header, <|sep|> ends it. A header without its <|sep|> counts when it is a bare known
//   name. What is open ends when a tag outside it comes: open(response) ends thinking, close(tools) ends a call,
//   close(message) ends everything. A tag that fits nowhere is dropped and the text inside it stays where it is.
//   Inside ARGUMENT and JSON all but the tags that end the value is the value's text, markers spelled out.
//   Credits: the transitions follow the public K3 parsers of vLLM and SGLang.
#pragma once

#include <memory>

#include "base/result.h"
#include "text/reply_builder.h"
#include "text/reply_grammar.h"

namespace tandem {

inline constexpr size_t kMaxXtmlHeaderBytes = 4096;

// `tokenizer` and `builder` outlive the grammar.
Result<std::unique_ptr<ReplyGrammar>> create_xtml_reply_grammar(const Tokenizer& tokenizer, const ReplyOptions& options,
                                                                ReplyBuilder& builder);

}  // namespace tandem

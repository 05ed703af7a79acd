// text/chat_format.h: which chat format a tokenizer speaks, by the control names it has, and rendering in it.
#pragma once

#include <vector>

#include "base/result.h"
#include "text/chat_message.h"
#include "text/segment.h"
#include "text/tokenizer.h"

namespace tandem {

enum class ChatFormat { kXtml, kK2 };

// <|open|>, <|close|>, <|sep|> and <|end_of_msg|> → kXtml (Kimi K3); <|im_user|>, <|im_assistant|>, <|im_system|>,
// <|im_middle|> and <|im_end|> → kK2 (rendered as K2-0905); else kUnsupported, naming what is missing.
Result<ChatFormat> detect_chat_format(const Tokenizer& tokenizer);

// The prompt of a request in the tokenizer's format. Every control name in a control segment exists, or the refusal
// (kUnsupported) names it.
Result<std::vector<Segment>> render_chat(const Tokenizer& tokenizer, const ChatRequest& request);

}  // namespace tandem

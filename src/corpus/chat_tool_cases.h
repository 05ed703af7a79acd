// corpus/chat_tool_cases.h: the tools of the generator's world: declaration, a request for it in everyday words, the
// typed arguments, a result and the answer that uses it. Part of chat_generator.h; not for others.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "corpus/chat_draw.h"
#include "text/chat_message.h"

namespace tandem {

struct ToolCase {
  std::string key;
  std::string question;
  JsonValue arguments;
  std::string result;
  std::string sentence;  // the answer
  std::string answer;    // what of the result the answer must contain
};

struct ToolKind {
  std::string_view name;
  std::string_view purpose;      // "tell the weather in a town", for saying what is missing
  std::string_view declaration;  // JSON of the function object
  ToolCase (*draw)(ChatDraw&);
};

std::span<const ToolKind> chat_tools();
Tool tool_of(const ToolKind& kind);

}  // namespace tandem

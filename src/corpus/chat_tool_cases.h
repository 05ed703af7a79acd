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

// A tool as a conversation declares it.
struct DrawnTool {
  std::string name;
  std::string purpose;  // "tell the weather", for saying what is missing
  Tool tool;
};

// A request and the tool that serves it; its key is an item of `draw`. Of the generator's world, or made up on the spot
// (chat_made_tools.cpp).
struct ToolUse {
  DrawnTool tool;
  ToolCase use;
};
ToolUse draw_tool_use(ChatDraw& draw);

// Some tool, to stand beside others.
DrawnTool draw_tool(ChatDraw& draw);

ToolUse draw_made_tool_use(ChatDraw& draw);
DrawnTool draw_made_tool(ChatDraw& draw);

}  // namespace tandem

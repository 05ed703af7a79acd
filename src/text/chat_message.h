// text/chat_message.h: a conversation as plain data, between the request parser and the renderers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/json_value.h"

namespace tandem {

enum class Role { kSystem, kUser, kAssistant, kTool };
std::string_view role_name(Role role);

struct ContentPart {
  enum class Kind { kText, kImage };
  Kind kind = Kind::kText;
  std::string text;    // kText
  std::string source;  // kImage: the URL or data URL, not yet looked at
  int64_t width = 0;   // kImage: original pixels; 0 until the image has been decoded
  int64_t height = 0;
};

struct ToolCall {
  std::optional<std::string> id;
  std::string name;
  JsonValue arguments;  // null: none; a string: as the client sent it, perhaps broken JSON; an object
};

struct Tool {
  std::string name;
  JsonValue declaration;  // the whole entry of the request, nothing added or dropped
};

struct Message {
  Role role = Role::kUser;
  std::string name;
  std::vector<ContentPart> content;
  std::string reasoning;                    // assistant; empty also when it was only white space
  std::vector<ToolCall> tool_calls;         // assistant
  std::optional<std::string> tool_call_id;  // tool
  std::string tool_name;                    // tool: before `name`
  std::vector<Tool> tools;                  // system: tools added at this place of the conversation
};

Message text_message(Role role, std::string text);

enum class ThinkingEffort { kLow, kHigh, kMax };
std::string_view effort_name(ThinkingEffort effort);

struct Thinking {
  bool enabled = true;
  std::optional<ThinkingEffort> effort;  // rendered when present and thinking is enabled
};

struct ToolChoice {
  enum class Kind { kAuto, kNone, kRequired, kNamed };
  Kind kind = Kind::kAuto;
  std::string name;  // kNamed
};

struct ResponseFormat {
  enum class Kind { kText, kJsonObject, kJsonSchema };
  Kind kind = Kind::kText;
  JsonValue schema;  // kJsonSchema: an object
};

struct ChatRequest {
  std::vector<Message> messages;
  std::vector<Tool> tools;
  Thinking thinking;
  ToolChoice tool_choice;
  ResponseFormat response_format;
  bool add_generation_prompt = true;
  // The last message is an assistant turn to be continued: it is left open, in place of the generation prompt.
  bool continue_final_message = false;
  // Ready-made control text of each image, in rendered order. With it a literal <|kimi_image_placeholder|> in a text
  // stands for an image, as in the reference's encoder; a server leaves it unset and the literal is ordinary text.
  std::optional<std::vector<std::string>> image_prompts;

  bool has_tools() const;  // declared at the top or by a system message
};

}  // namespace tandem

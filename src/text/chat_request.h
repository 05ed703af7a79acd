// text/chat_request.h: JSON → ChatRequest, by the rules of the HTTP API or of the low-level encoder.
//
//   A refusal is kInvalidArgument and its message begins with the path of the field (`messages[2].role: expected …`).
//   Unknown fields are ignored. Stateless: any thread.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/chat_message.h"

namespace tandem {

// The body of a /v1/chat/completions request: documented defaults (thinking on, effort max), `developer` is a system
// message, and what a conversation must fulfil: messages present, known roles, a system message with content or tools
// but not both, tool names declared once, a tool_choice that names a declared tool, `partial` only on a last assistant
// turn without calls. A named tool_choice switches thinking off.
Result<ChatRequest> parse_chat_request(std::string_view json_text);
Result<ChatRequest> parse_chat_request(const JsonValue& body);

// The low-level encoder's input: nothing is added that it does not state (no effort unless thinking_effort is given),
// a message of an unknown role is skipped, image_prompts may stand for the images.
Result<ChatRequest> parse_bare_request(std::string_view json_text);
Result<ChatRequest> parse_bare_request(const JsonValue& input);

}  // namespace tandem

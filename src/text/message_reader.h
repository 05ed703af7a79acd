// text/message_reader.h: the `messages` and `tools` of a chat request. Part of chat_request.h; not for others.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/chat_message.h"

namespace tandem {

enum class ChatRules { kApi, kBare };

// Appends the messages; `partial` is set when the last one asks to be continued.
Status read_messages(const JsonValue& request, ChatRules rules, std::vector<Message>& messages, bool& partial);

// Appends the entries of a `tools` list; null counts as an empty list.
Status read_tools(const JsonValue* tools, std::string_view path, std::vector<Tool>& out);

}  // namespace tandem

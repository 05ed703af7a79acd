#include "text/chat_message.h"

namespace tandem {

std::string_view role_name(Role role) {
  switch (role) {
    case Role::kSystem: return "system";
    case Role::kUser: return "user";
    case Role::kAssistant: return "assistant";
    case Role::kTool: return "tool";
  }
  return "user";
}

std::string_view effort_name(ThinkingEffort effort) {
  switch (effort) {
    case ThinkingEffort::kLow: return "low";
    case ThinkingEffort::kHigh: return "high";
    case ThinkingEffort::kMax: return "max";
  }
  return "max";
}

Message text_message(Role role, std::string text) {
  Message message;
  message.role = role;
  ContentPart part;
  part.text = std::move(text);
  message.content.push_back(std::move(part));
  return message;
}

bool ChatRequest::has_tools() const {
  if (!tools.empty()) return true;
  for (const Message& message : messages) {
    if (!message.tools.empty()) return true;
  }
  return false;
}

}  // namespace tandem

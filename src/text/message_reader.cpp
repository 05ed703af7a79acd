#include "text/message_reader.h"

#include "base/utf8.h"
#include "text/field.h"
#include "text/unicode_classes.h"

namespace tandem {
namespace {

bool is_blank(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = decode_utf8(text.substr(i));
    if (!step.valid || !is_white_space(step.code_point)) return false;
    i += step.size;
  }
  return true;
}

std::optional<Role> role_of(std::string_view name, ChatRules rules) {
  for (const Role role : {Role::kSystem, Role::kUser, Role::kAssistant, Role::kTool}) {
    if (name == role_name(role)) return role;
  }
  if (name == "developer" && rules == ChatRules::kApi) return Role::kSystem;
  return std::nullopt;
}

Status read_part(const JsonValue& value, const std::string& path, ContentPart& part) {
  if (!value.is_object()) return bad_field(path, "an object", &value);
  const JsonValue* type = value.find("type");
  const std::string_view name = type != nullptr && type->is_string() ? std::string_view(type->text()) : "";
  if (name == "text" || name == "input_text" || name == "output_text") {
    const JsonValue* text = value.find("text");
    if (text == nullptr || !text->is_string()) return bad_field(path + ".text", "a string", text);
    part.text = text->text();
    return Status::ok();
  }
  if (name == "image_url" || name == "image") {
    part.kind = ContentPart::Kind::kImage;
    const JsonValue* source = value.find_set(name);
    if (source != nullptr && source->is_object()) source = source->find_set("url");
    if (source != nullptr && !source->is_string()) return bad_field(cat(path, ".", name), "a URL", source);
    if (source != nullptr) part.source = source->text();
    return Status::ok();
  }
  return bad_field(path + ".type", "text or image_url", type);
}

Status read_content(const JsonValue* content, const std::string& path, std::vector<ContentPart>& parts) {
  if (content == nullptr || content->is_null()) return Status::ok();
  if (content->is_string()) {
    parts.emplace_back().text = content->text();
    return Status::ok();
  }
  if (!content->is_array()) return bad_field(path, "a string or a list of parts", content);
  for (size_t i = 0; i < content->items().size(); ++i) {
    TANDEM_RETURN_IF_ERROR(read_part(content->items()[i], cat(path, "[", i, "]"), parts.emplace_back()));
  }
  return Status::ok();
}

// An id is compared as text, whether the client sent a string or a number.
Status read_id(const JsonValue& object, std::string_view key, const std::string& path, std::optional<std::string>& id) {
  const JsonValue* found = object.find_set(key);
  if (found == nullptr) return Status::ok();
  if (!found->is_string() && found->kind() != JsonKind::kNumber)
    return bad_field(path + std::string(key), "a string", found);
  id = found->text();
  return Status::ok();
}

Status read_tool_call(const JsonValue& value, const std::string& path, ToolCall& call) {
  if (!value.is_object()) return bad_field(path, "an object", &value);
  TANDEM_RETURN_IF_ERROR(read_id(value, "id", path + ".", call.id));
  const JsonValue* function = value.find("function");
  if (function == nullptr || !function->is_object()) return bad_field(path + ".function", "an object", function);
  const JsonValue* name = function->find("name");
  if (name == nullptr || !name->is_string() || name->text().empty()) {
    return bad_field(path + ".function.name", "a non-empty string", name);
  }
  call.name = name->text();
  const JsonValue* arguments = function->find_set("arguments");
  if (arguments == nullptr) return Status::ok();
  if (!arguments->is_string() && !arguments->is_object()) {
    return bad_field(path + ".function.arguments", "an object or a string of JSON", arguments);
  }
  if (!arguments->is_string() || !is_blank(arguments->text())) call.arguments = *arguments;
  return Status::ok();
}

Status read_assistant(const JsonValue& value, const std::string& path, Message& message) {
  for (const std::string_view key : {"reasoning_content", "reasoning"}) {
    std::string reasoning;
    TANDEM_RETURN_IF_ERROR(read_string(value, key, path + ".", reasoning));
    if (message.reasoning.empty() && !is_blank(reasoning)) message.reasoning = std::move(reasoning);
  }
  const JsonValue* calls = value.find_set("tool_calls");
  if (calls == nullptr) return Status::ok();
  if (!calls->is_array()) return bad_field(path + ".tool_calls", "a list", calls);
  for (size_t i = 0; i < calls->items().size(); ++i) {
    TANDEM_RETURN_IF_ERROR(
        read_tool_call(calls->items()[i], cat(path, ".tool_calls[", i, "]"), message.tool_calls.emplace_back()));
  }
  return Status::ok();
}

bool has_text_or_image(const Message& message) {
  for (const ContentPart& part : message.content) {
    if (part.kind == ContentPart::Kind::kImage || !part.text.empty()) return true;
  }
  return false;
}

// What the API asks of a message beyond its types.
Status check_message(const JsonValue& value, const std::string& path, const Message& message) {
  const JsonValue* tools = value.find_set("tools");
  if (tools != nullptr && message.role != Role::kSystem) {
    return bad_field(path + ".tools", "no tools on a message that is not a system message", tools);
  }
  const JsonValue* content = value.find("content");
  if (message.role == Role::kSystem) {
    if (message.tools.empty() && (content == nullptr || content->is_null())) {
      return bad_field(path + ".content", "content or tools on a system message", content);
    }
    if (!message.tools.empty() && has_text_or_image(message)) {
      return bad_field(path + ".content", "no content next to tools on a system message", content);
    }
  } else if (message.role != Role::kAssistant && content == nullptr) {
    return bad_field(path + ".content", "a string or a list of parts", content);
  }
  return Status::ok();
}

Status read_message(const JsonValue& value, ChatRules rules, const std::string& path, Message& message) {
  TANDEM_RETURN_IF_ERROR(read_string(value, "name", path + ".", message.name));
  TANDEM_RETURN_IF_ERROR(read_content(value.find("content"), path + ".content", message.content));
  if (message.role == Role::kAssistant) TANDEM_RETURN_IF_ERROR(read_assistant(value, path, message));
  if (message.role == Role::kTool) {
    TANDEM_RETURN_IF_ERROR(read_id(value, "tool_call_id", path + ".", message.tool_call_id));
    if (!message.tool_call_id) TANDEM_RETURN_IF_ERROR(read_id(value, "id", path + ".", message.tool_call_id));
    TANDEM_RETURN_IF_ERROR(read_string(value, "tool", path + ".", message.tool_name));
  }
  if (message.role == Role::kSystem) {
    TANDEM_RETURN_IF_ERROR(read_tools(value.find("tools"), path + ".tools", message.tools));
  }
  return rules == ChatRules::kApi ? check_message(value, path, message) : Status::ok();
}

}  // namespace

Status read_tools(const JsonValue* tools, std::string_view path, std::vector<Tool>& out) {
  if (tools == nullptr || tools->is_null()) return Status::ok();
  if (!tools->is_array()) return bad_field(path, "a list", tools);
  for (size_t i = 0; i < tools->items().size(); ++i) {
    const JsonValue& tool = tools->items()[i];
    const std::string place = cat(path, "[", i, "]");
    if (!tool.is_object()) return bad_field(place, "an object", &tool);
    const JsonValue* function = tool.find("function");
    if (function == nullptr || !function->is_object()) return bad_field(place + ".function", "an object", function);
    const JsonValue* name = function->find("name");
    if (name == nullptr || !name->is_string() || name->text().empty()) {
      return bad_field(place + ".function.name", "a non-empty string", name);
    }
    out.push_back({name->text(), tool});
  }
  return Status::ok();
}

Status read_messages(const JsonValue& request, ChatRules rules, std::vector<Message>& messages, bool& partial) {
  const JsonValue* list = request.find("messages");
  if (list == nullptr || !list->is_array()) return bad_field("messages", "a non-empty list", list);
  if (rules == ChatRules::kApi && list->items().empty()) {
    return Status::invalid("messages: expected a non-empty list, found an empty list");
  }
  for (size_t i = 0; i < list->items().size(); ++i) {
    const JsonValue& value = list->items()[i];
    const std::string path = cat("messages[", i, "]");
    if (!value.is_object()) return bad_field(path, "an object", &value);
    const JsonValue* role_field = value.find("role");
    if (role_field == nullptr || !role_field->is_string()) return bad_field(path + ".role", "a role", role_field);
    const auto role = role_of(role_field->text(), rules);
    if (!role && rules == ChatRules::kBare) continue;
    if (!role) return bad_field(path + ".role", "system, developer, user, assistant or tool", role_field);
    Message message;
    message.role = *role;
    TANDEM_RETURN_IF_ERROR(read_message(value, rules, path, message));
    bool continues = false;
    TANDEM_RETURN_IF_ERROR(read_boolean(value, "partial", path + ".", continues));
    if (continues && i + 1 != list->items().size()) {
      return bad_field(path + ".partial", "the last message to be the partial one", value.find("partial"));
    }
    partial = partial || continues;
    messages.push_back(std::move(message));
  }
  return Status::ok();
}

}  // namespace tandem

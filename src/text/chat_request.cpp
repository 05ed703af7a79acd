#include "text/chat_request.h"

#include <set>

#include "text/field.h"
#include "text/message_reader.h"
#include "text/thinking.h"

namespace tandem {
namespace {

Status read_tool_choice(const JsonValue& request, ToolChoice& choice) {
  const JsonValue* found = request.find_set("tool_choice");
  if (found == nullptr) return Status::ok();
  if (found->is_object()) {
    const JsonValue* function = found->find("function");
    const JsonValue* name = function == nullptr ? nullptr : function->find("name");
    if (name == nullptr || !name->is_string() || name->text().empty()) {
      return bad_field("tool_choice.function.name", "a non-empty string", name);
    }
    choice = {ToolChoice::Kind::kNamed, name->text()};
    return Status::ok();
  }
  const std::string_view word = found->is_string() ? std::string_view(found->text()) : std::string_view();
  if (word == "auto") {
    choice.kind = ToolChoice::Kind::kAuto;
  } else if (word == "none") {
    choice.kind = ToolChoice::Kind::kNone;
  } else if (word == "required") {
    choice.kind = ToolChoice::Kind::kRequired;
  } else {
    return bad_field("tool_choice", "none, auto, required or a named function", found);
  }
  return Status::ok();
}

Status read_response_format(const JsonValue& request, ResponseFormat& format) {
  const JsonValue* found = request.find_set("response_format");
  if (found == nullptr) return Status::ok();
  if (!found->is_object()) return bad_field("response_format", "an object", found);
  const JsonValue* type = found->find("type");
  const std::string_view name = type != nullptr && type->is_string() ? std::string_view(type->text()) : "";
  if (name == "text") return Status::ok();
  if (name == "json_object") {
    format.kind = ResponseFormat::Kind::kJsonObject;
    return Status::ok();
  }
  if (name != "json_schema") return bad_field("response_format.type", "text, json_object or json_schema", type);
  const JsonValue* schema = found->find_set("json_schema");
  if (schema != nullptr && schema->is_object()) {
    const JsonValue* inner = schema->find_set("schema");
    if (inner == nullptr) inner = schema->find_set("json_schema");
    if (inner != nullptr) schema = inner;
  }
  if (schema == nullptr || !schema->is_object())
    return bad_field("response_format.json_schema", "a schema object", schema);
  format.kind = ResponseFormat::Kind::kJsonSchema;
  format.schema = *schema;
  return Status::ok();
}

// Fields that both kinds of input have.
Status read_common(const JsonValue& request, ChatRules rules, ChatRequest& out) {
  if (!request.is_object()) return bad_field("request", "an object", &request);
  TANDEM_RETURN_IF_ERROR(read_messages(request, rules, out.messages, out.continue_final_message));
  TANDEM_RETURN_IF_ERROR(read_tools(request.find("tools"), "tools", out.tools));
  TANDEM_RETURN_IF_ERROR(read_tool_choice(request, out.tool_choice));
  TANDEM_RETURN_IF_ERROR(read_response_format(request, out.response_format));
  TANDEM_RETURN_IF_ERROR(read_boolean(request, "add_generation_prompt", "", out.add_generation_prompt));
  bool continues = false;
  TANDEM_RETURN_IF_ERROR(read_boolean(request, "continue_final_message", "", continues));
  const JsonValue* prompt = request.find_set("add_generation_prompt");
  if (continues && prompt != nullptr && prompt->as_boolean()) {
    return bad_field("continue_final_message", "add_generation_prompt to be false next to it", prompt);
  }
  out.continue_final_message = out.continue_final_message || continues;
  if (!out.continue_final_message) return Status::ok();
  if (out.messages.empty() || out.messages.back().role != Role::kAssistant) {
    return Status::invalid("messages: expected an assistant message at the end to be continued");
  }
  if (!out.messages.back().tool_calls.empty()) {
    return Status::invalid("messages: expected no tool_calls in the assistant message to be continued");
  }
  return Status::ok();
}

Status check_tools(const ChatRequest& request) {
  std::set<std::string> names;
  const auto declare = [&](const std::vector<Tool>& tools) {
    for (const Tool& tool : tools) {
      if (!names.insert(tool.name).second) {
        return Status::invalid(cat("tools: expected every function name once, found \"", tool.name, "\" again"));
      }
    }
    return Status::ok();
  };
  TANDEM_RETURN_IF_ERROR(declare(request.tools));
  for (const Message& message : request.messages) TANDEM_RETURN_IF_ERROR(declare(message.tools));
  const ToolChoice& choice = request.tool_choice;
  const bool must_call = choice.kind == ToolChoice::Kind::kRequired || choice.kind == ToolChoice::Kind::kNamed;
  if (must_call && names.empty()) {
    return Status::invalid("tool_choice: expected tools to be declared when a call is required, found none");
  }
  if (choice.kind == ToolChoice::Kind::kNamed && names.count(choice.name) == 0) {
    return Status::invalid(cat("tool_choice: expected a declared function, found \"", choice.name, "\""));
  }
  return Status::ok();
}

Status read_image_prompts(const JsonValue& input, ChatRequest& out) {
  const JsonValue* prompts = input.find_set("image_prompts");
  if (prompts == nullptr) return Status::ok();
  if (!prompts->is_array()) return bad_field("image_prompts", "a list of strings", prompts);
  out.image_prompts.emplace();
  for (const JsonValue& prompt : prompts->items()) {
    if (!prompt.is_string()) return bad_field("image_prompts", "a list of strings", &prompt);
    out.image_prompts->push_back(prompt.text());
  }
  return Status::ok();
}

}  // namespace

Result<ChatRequest> parse_chat_request(const JsonValue& body) {
  ChatRequest request;
  TANDEM_RETURN_IF_ERROR(read_common(body, ChatRules::kApi, request));
  TANDEM_RETURN_IF_ERROR(check_tools(request));
  auto thinking = resolve_thinking(body);
  if (!thinking.is_ok()) return thinking.status();
  request.thinking = thinking.value();
  if (request.tool_choice.kind == ToolChoice::Kind::kNamed) request.thinking = {false, std::nullopt};
  return request;
}

Result<ChatRequest> parse_chat_request(std::string_view json_text) {
  auto body = parse_json(json_text, "request");
  if (!body.is_ok()) return body.status();
  return parse_chat_request(body.value());
}

Result<ChatRequest> parse_bare_request(const JsonValue& input) {
  ChatRequest request;
  TANDEM_RETURN_IF_ERROR(read_common(input, ChatRules::kBare, request));
  TANDEM_RETURN_IF_ERROR(read_image_prompts(input, request));
  auto thinking = bare_thinking(input);
  if (!thinking.is_ok()) return thinking.status();
  request.thinking = thinking.value();
  return request;
}

Result<ChatRequest> parse_bare_request(std::string_view json_text) {
  auto input = parse_json(json_text, "input");
  if (!input.is_ok()) return input.status();
  return parse_bare_request(input.value());
}

}  // namespace tandem

#include "text/xtml_renderer.h"

#include "base/cat.h"
#include "text/json_format.h"
#include "text/tool_results.h"
#include "text/xtml_writer.h"

namespace tandem {
namespace {

constexpr std::string_view kToolsHead = "# Tools\nHere are the available tools, described in JSONSchema.\n\n";
constexpr std::string_view kMoreToolsHead =
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\nYou have access to all "
    "existing "
    "and extended tools.\nHere are the specs for the extended tools.\n\n";
constexpr std::string_view kEffortHead =
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort=";
constexpr std::string_view kFormatTail =
    "`.\nYour response must be raw JSON data without markdown code blocks (```json) or any additional formatting.";

std::string json_block(std::string_view json) { return cat("```json\n", json, "\n```"); }

std::string tools_json(const std::vector<Tool>& tools) {
  JsonValue list = JsonValue::array();
  for (const Tool& tool : tools) list.mutable_items().push_back(tool.declaration);
  return format_json_sorted(list);
}

void write_tools(XtmlWriter& out, const std::vector<Tool>& tools, std::string_view head) {
  out.system_note("tool-declare", cat(head, json_block(tools_json(tools))));
}

std::string_view argument_type(const JsonValue& value) { return json_kind_name(value.kind()); }

Status write_arguments(XtmlWriter& out, const ToolCall& call) {
  JsonValue parsed;
  const JsonValue* arguments = &call.arguments;
  if (arguments->is_null()) return Status::ok();
  if (arguments->is_string()) {
    auto value = parse_json(arguments->text(), "arguments");
    if (!value.is_ok()) {  // what the model once wrote, kept for it to see
      out.open("json", {{"type", "object"}});
      out.text(arguments->text());
      out.close("json");
      return Status::ok();
    }
    parsed = std::move(value).value();
    arguments = &parsed;
  }
  if (!arguments->is_object()) {
    return Status::invalid(cat("tool_calls: arguments of \"", call.name, "\": expected a JSON object, found ",
                               json_kind_name(arguments->kind())));
  }
  for (const auto& [key, value] : arguments->members()) {
    out.open("argument", {{"key", key}, {"type", argument_type(value)}});
    out.text(value.is_string() ? value.text() : format_json_spaced(value));
    out.close("argument");
  }
  return Status::ok();
}

Status write_assistant_body(XtmlWriter& out, const Message& message, bool thinking) {
  if (thinking) {
    out.open("think");
    out.text(message.reasoning);
    out.close("think");
  }
  out.open("response");
  TANDEM_RETURN_IF_ERROR(out.content(message.content));
  out.close("response");
  if (message.tool_calls.empty()) return Status::ok();
  out.open("tools");
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    const ToolCall& call = message.tool_calls[i];
    out.open("call", {{"tool", call.name}, {"index", cat(i + 1)}});
    TANDEM_RETURN_IF_ERROR(write_arguments(out, call));
    out.close("call");
  }
  out.close("tools");
  return Status::ok();
}

// `index` counts from 1 since `calls`' assistant message.
Status write_tool_result(XtmlWriter& out, const Message& message, size_t index, const std::vector<ToolCall>& calls) {
  std::string_view name = message.tool_name;
  if (name.empty()) name = message.name;
  if (name.empty() && index <= calls.size()) name = calls[index - 1].name;
  if (name.empty()) {
    return Status::invalid(cat("messages: tool result ", index,
                               " after the last assistant message: expected a call it answers or "
                               "a tool name, found neither"));
  }
  out.open("message", {{"role", "tool"}, {"tool", name}, {"index", cat(index)}});
  TANDEM_RETURN_IF_ERROR(out.content(message.content));
  out.close_message();
  return Status::ok();
}

Status write_conversation(XtmlWriter& out, const std::vector<Message>& messages, bool thinking) {
  const std::vector<ToolCall> no_calls;
  const std::vector<ToolCall>* calls = &no_calls;
  size_t num_results = 0;
  for (const Message& message : messages) {
    switch (message.role) {
      case Role::kTool: TANDEM_RETURN_IF_ERROR(write_tool_result(out, message, ++num_results, *calls)); break;
      case Role::kAssistant:
        calls = &message.tool_calls;
        num_results = 0;
        out.open_message(message.role, message.name);
        TANDEM_RETURN_IF_ERROR(write_assistant_body(out, message, thinking));
        out.close_message();
        break;
      case Role::kSystem:
      case Role::kUser:
        if (!message.tools.empty()) {
          write_tools(out, message.tools, kMoreToolsHead);
          break;
        }
        out.open_message(message.role, message.name);
        TANDEM_RETURN_IF_ERROR(out.content(message.content));
        out.close_message();
        break;
    }
  }
  return Status::ok();
}

void write_tool_choice(XtmlWriter& out, const ToolChoice& choice) {
  constexpr std::string_view kHead = "The system is invoked with `tool_choice=";
  switch (choice.kind) {
    case ToolChoice::Kind::kAuto: break;
    case ToolChoice::Kind::kNone:
      out.system_note("tool-choice", cat(kHead, "none`.\nYou MUST NOT call any tools in the next message."));
      break;
    case ToolChoice::Kind::kRequired:
      out.system_note("tool-choice", cat(kHead, "required`.\nYou MUST call tools in the next message."));
      break;
    case ToolChoice::Kind::kNamed:
      out.system_note("tool-choice",
                      cat(kHead, "specified`.\nYou MUST call the tool `", choice.name, "` in the next message."));
      break;
  }
}

void write_response_format(XtmlWriter& out, const ResponseFormat& format) {
  constexpr std::string_view kHead = "The system is invoked with `response_format=";
  switch (format.kind) {
    case ResponseFormat::Kind::kText: break;
    case ResponseFormat::Kind::kJsonObject:
      out.system_note("response-format", cat(kHead, "json_object", kFormatTail));
      break;
    case ResponseFormat::Kind::kJsonSchema:
      out.system_note("response-format",
                      cat(kHead, "json_schema", kFormatTail, "\nThe JSON data must match the following schema:\n",
                          json_block(format_json_sorted(format.schema))));
      break;
  }
}

// The open end of the prompt: the turn that the model writes on.
Status write_open_turn(XtmlWriter& out, const ChatRequest& request, const Message* partial) {
  if (partial != nullptr) {
    out.open_message(Role::kAssistant, partial->name);
    if (request.thinking.enabled) {
      out.open("think");
      out.text(partial->reasoning);
      out.close("think");
    }
    out.open("response");
    return out.content(partial->content);
  }
  if (!request.add_generation_prompt) return Status::ok();
  out.open_message(Role::kAssistant, "");
  out.open(request.thinking.enabled ? "think" : "response");
  return Status::ok();
}

}  // namespace

Result<std::vector<Segment>> render_xtml(const ChatRequest& request) {
  XtmlWriter out(request.image_prompts ? &*request.image_prompts : nullptr);
  if (!request.tools.empty()) write_tools(out, request.tools, kToolsHead);
  if (request.thinking.enabled && request.thinking.effort) {
    out.system_note("thinking-effort", cat(kEffortHead, effort_name(*request.thinking.effort), "`."));
  }
  std::vector<Message> messages = order_tool_results(request.messages);
  std::optional<Message> partial;
  if (request.continue_final_message && !messages.empty()) {
    partial = std::move(messages.back());
    messages.pop_back();
  }
  TANDEM_RETURN_IF_ERROR(write_conversation(out, messages, request.thinking.enabled));
  if (request.has_tools()) write_tool_choice(out, request.tool_choice);
  write_response_format(out, request.response_format);
  TANDEM_RETURN_IF_ERROR(write_open_turn(out, request, partial ? &*partial : nullptr));
  TANDEM_RETURN_IF_ERROR(out.check_images_used());
  return out.take();
}

}  // namespace tandem

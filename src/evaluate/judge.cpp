#include "evaluate/judge.h"

#include <algorithm>

#include "base/cat.h"
#include "evaluate/json_schema.h"
#include "text/json_format.h"

namespace tandem {
namespace {

// The function object of a declaration: {"type": "function", "function": {…}} or the object itself.
const JsonValue& function_of(const Tool& tool) {
  const JsonValue* function = tool.declaration.find_set("function");
  return function != nullptr ? *function : tool.declaration;
}

// Arguments as the chat message of an example holds them: nothing, an object, or its JSON text.
Result<JsonValue> argument_object(const JsonValue& arguments) {
  if (arguments.is_null()) return JsonValue::object();
  if (arguments.is_string()) return parse_json(arguments.text(), "arguments");
  return arguments;
}

std::string call_fault(const ParsedToolCall& call, const std::vector<Tool>& tools) {
  const auto tool = std::ranges::find(tools, call.name, &Tool::name);
  if (tool == tools.end()) return cat("called \"", call.name, "\", which is not declared");
  const auto arguments = parse_json(call.arguments, "arguments");
  if (!arguments.is_ok()) return cat(call.name, ": ", arguments.status().message());
  if (!arguments.value().is_object()) return cat(call.name, ": the arguments are no object: ", call.arguments);
  const JsonValue* parameters = function_of(*tool).find_set("parameters");
  const std::string fault = parameters == nullptr ? "" : schema_fault(arguments.value(), *parameters);
  return fault.empty() ? "" : cat(call.name, ": ", fault);
}

std::string difference(const std::vector<ToolCall>& wanted, const std::vector<ParsedToolCall>& found) {
  if (wanted.size() != found.size()) return cat("expected ", wanted.size(), " calls, found ", found.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i].name != found[i].name) return cat("expected a call of ", wanted[i].name, ", found ", found[i].name);
    const auto expected = argument_object(wanted[i].arguments);
    const auto arguments = parse_json(found[i].arguments, "arguments");
    if (!expected.is_ok() || !arguments.is_ok() || !same_json(expected.value(), arguments.value())) {
      return cat("expected the arguments ",
                 expected.is_ok() ? format_json_spaced(expected.value()) : wanted[i].arguments.text(), ", found ",
                 found[i].arguments);
    }
  }
  return "";
}

Verdict judge_calls(const ChatExample& example, const ParsedReply& reply) {
  Verdict verdict;
  if (reply.has_unfinished_call) {
    verdict.fault = "a call was cut off";
    return verdict;
  }
  if (reply.tool_calls.empty()) {
    verdict.fault = "nothing was called";
    return verdict;
  }
  const std::vector<Tool> tools = declared_tools(example.request);
  for (const ParsedToolCall& call : reply.tool_calls) {
    verdict.fault = call_fault(call, tools);
    if (!verdict.fault.empty()) return verdict;
  }
  verdict.valid = true;
  verdict.fault = difference(example.reply.tool_calls, reply.tool_calls);
  verdict.right = verdict.fault.empty();
  return verdict;
}

Verdict judge_json(const ChatExample& example, const ParsedReply& reply) {
  Verdict verdict;
  const auto value = parse_json(reply.content.value_or(""), "content");
  if (!value.is_ok()) {
    verdict.fault = value.status().message();
    return verdict;
  }
  const ResponseFormat& format = example.request.response_format;
  if (!value.value().is_object()) {
    verdict.fault = "the content is JSON but no object";
  } else if (format.kind == ResponseFormat::Kind::kJsonSchema) {
    verdict.fault = schema_fault(value.value(), format.schema);
  }
  verdict.valid = verdict.fault.empty();
  if (!verdict.valid) return verdict;
  const auto expected = parse_json(example.answer, "answer");
  verdict.right = expected.is_ok() && same_json(value.value(), expected.value());
  if (!verdict.right) verdict.fault = cat("expected ", example.answer);
  return verdict;
}

}  // namespace

std::vector<Tool> declared_tools(const ChatRequest& request) {
  std::vector<Tool> tools = request.tools;
  for (const Message& message : request.messages) tools.insert(tools.end(), message.tools.begin(), message.tools.end());
  return tools;
}

Verdict judge_reply(const ChatExample& example, const ParsedReply& reply) {
  if (!example.reply.tool_calls.empty()) return judge_calls(example, reply);
  const bool has_call = !reply.tool_calls.empty() || reply.has_unfinished_call;
  if (has_call) {
    return {false, false,
            cat("called ", reply.tool_calls.empty() ? "something" : reply.tool_calls[0].name,
                " where an answer was expected")};
  }
  if (example.request.response_format.kind != ResponseFormat::Kind::kText) return judge_json(example, reply);
  Verdict verdict;
  TANDEM_CHECK(!example.answer.empty(), "an example without a call has an answer");
  verdict.right = reply.content.value_or("").find(example.answer) != std::string::npos;
  verdict.valid = verdict.right;
  if (!verdict.right) verdict.fault = cat("expected \"", example.answer, "\" in the content");
  return verdict;
}

}  // namespace tandem

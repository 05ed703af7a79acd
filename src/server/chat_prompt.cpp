#include "server/chat_prompt.h"

#include <algorithm>

#include "server/field_reader.h"
#include "text/chat_request.h"
#include "text/field.h"

namespace tandem {
namespace {

// No vision here: say so instead of rendering a picture nobody looks at.
Status refuse_images(const std::vector<Message>& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    for (size_t k = 0; k < messages[i].content.size(); ++k) {
      if (messages[i].content[k].kind != ContentPart::Kind::kImage) continue;
      return Status::invalid(
          cat("messages[", i, "].content[", k, "]: expected text, found an image: this server has no vision"));
    }
  }
  return Status::ok();
}

bool is_strict_name(std::string_view name) {
  constexpr size_t kMaxBytes = 256;
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && name.size() <= kMaxBytes && is_letter(name[0]) &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '-'; });
}

Status check_strict_tools(const std::vector<Tool>& tools, std::string_view path) {
  for (size_t i = 0; i < tools.size(); ++i) {
    if (is_strict_name(tools[i].name)) continue;
    return Status::invalid(cat(path, "[", i,
                               "].function.name: expected a letter or _, then up to 255 letters, digits, ",
                               "_ or -, found \"", tools[i].name.substr(0, 64), "\""));
  }
  return Status::ok();
}

// The older and engine-specific names of a wanted format. Those that hold a JSON schema become the response format;
// the others would need constrained decoding.
Status read_other_formats(const JsonValue& body, ResponseFormat& format) {
  size_t num_formats = format.kind == ResponseFormat::Kind::kText ? 0 : 1;
  const auto take_schema = [&](std::string_view key, const JsonValue* value) {
    if (value == nullptr) return Status::ok();
    JsonValue parsed;
    if (value->is_string()) {  // some clients send the schema as its text
      auto text = parse_json(value->text(), key);
      if (!text.is_ok()) return text.status();
      parsed = std::move(text).value();
      value = &parsed;
    }
    if (!value->is_object()) return bad_field(key, "a JSON schema object", value);
    if (++num_formats > 1)
      return Status::invalid(cat(key, ": expected one output format, found another one next to it"));
    format.kind = ResponseFormat::Kind::kJsonSchema;
    format.schema = *value;
    return Status::ok();
  };
  const auto refuse = [&](std::string_view path, const JsonValue* value) {
    return value == nullptr ? Status::ok()
                            : bad_field(path, "no constraint but a JSON schema, the only one this server knows", value);
  };
  TANDEM_RETURN_IF_ERROR(take_schema("json_schema", body.find_set("json_schema")));
  TANDEM_RETURN_IF_ERROR(take_schema("guided_json", body.find_set("guided_json")));
  if (const JsonValue* outputs = body.find_set("structured_outputs")) {
    if (!outputs->is_object()) return bad_field("structured_outputs", "an object", outputs);
    TANDEM_RETURN_IF_ERROR(take_schema("structured_outputs.json", outputs->find_set("json")));
    for (const std::string_view key : {"regex", "choice", "grammar"}) {
      TANDEM_RETURN_IF_ERROR(refuse(cat("structured_outputs.", key), outputs->find_set(key)));
    }
  }
  for (const std::string_view key : {"guided_regex", "guided_choice", "guided_grammar", "grammar"}) {
    TANDEM_RETURN_IF_ERROR(refuse(key, body.find_set(key)));
  }
  return Status::ok();
}

std::vector<std::string> tool_names(const ChatRequest& request) {
  std::vector<std::string> names;
  for (const Tool& tool : request.tools) names.push_back(tool.name);
  for (const Message& message : request.messages) {
    for (const Tool& tool : message.tools) names.push_back(tool.name);
  }
  return names;
}

int64_t open_channel_tokens(const std::vector<TokenId>& ids, const std::vector<std::vector<TokenId>>& openers) {
  for (const auto& opener : openers) {
    if (ids.size() >= opener.size() && std::equal(opener.rbegin(), opener.rend(), ids.rbegin())) {
      return static_cast<int64_t>(opener.size());
    }
  }
  return 0;
}

ReplyOptions reply_options(const ChatRequest& request, ChatFormat format, bool stream_tool_arguments) {
  ReplyOptions options;
  const bool thinks = format == ChatFormat::kXtml && request.thinking.enabled && !request.continue_final_message;
  options.start = thinks ? ReplyRegion::kThink : ReplyRegion::kResponse;
  options.report_tool_calls = request.has_tools() && request.tool_choice.kind != ToolChoice::Kind::kNone;
  options.stream_tool_arguments = stream_tool_arguments;
  options.tool_names = tool_names(request);
  return options;
}

}  // namespace

std::vector<std::vector<TokenId>> channel_openers(const Tokenizer& tokenizer, ChatFormat format) {
  if (format != ChatFormat::kXtml) return {};
  std::vector<std::vector<TokenId>> openers;
  for (const std::string_view channel : {"think", "response"}) {
    openers.push_back(
        encode_segments(tokenizer, {{"<|open|>", true}, {std::string(channel), false}, {"<|sep|>", true}}));
  }
  return openers;
}

Result<ChatPrompt> read_chat_prompt(const JsonValue& body, const ApiContext& context) {
  if (!context.chat_format) return Status::unsupported("chat: the tokenizer's control names fit no known chat format");
  auto request = parse_chat_request(body);
  if (!request.is_ok()) return request.status();
  ChatPrompt prompt;
  prompt.request = std::move(request).value();
  prompt.format = *context.chat_format;
  TANDEM_RETURN_IF_ERROR(refuse_images(prompt.request.messages));
  TANDEM_RETURN_IF_ERROR(read_other_formats(body, prompt.request.response_format));
  if (context.options.strict_vendor) {
    TANDEM_RETURN_IF_ERROR(check_strict_tools(prompt.request.tools, "tools"));
    for (size_t i = 0; i < prompt.request.messages.size(); ++i) {
      TANDEM_RETURN_IF_ERROR(check_strict_tools(prompt.request.messages[i].tools, cat("messages[", i, "].tools")));
    }
  }
  FieldReader fields(body);
  prompt.parallel_calls = fields.flag("parallel_tool_calls", true);
  const bool stream_arguments = fields.flag("stream_tool_arguments", context.options.stream_tool_arguments);
  TANDEM_RETURN_IF_ERROR(fields.status());
  auto segments = render_chat(context.tokenizer, prompt.request);
  if (!segments.is_ok()) return segments.status();
  prompt.segments = std::move(segments).value();
  prompt.ids = encode_segments(context.tokenizer, prompt.segments);
  prompt.reply = reply_options(prompt.request, prompt.format, stream_arguments);
  prompt.opener_tokens = open_channel_tokens(prompt.ids, context.channel_openers);
  return prompt;
}

}  // namespace tandem

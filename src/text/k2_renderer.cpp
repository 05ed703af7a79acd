#include "text/k2_renderer.h"

#include <utility>

#include "base/cat.h"
#include "text/json_format.h"

namespace tandem {
namespace {

class K2Writer {
 public:
  K2Writer(const ChatRequest& request, const K2Options& options) : request_(request), options_(options) {}

  Result<std::vector<Segment>> render();

 private:
  bool is(K2Edition edition) const { return options_.edition == edition; }
  void control(std::string_view text);
  void text(std::string_view text) { pending_ += text; }
  void think_mark(std::string_view mark);
  void open(Role role, std::string_view name);
  void declare_tools();
  void content(const Message& message);
  void calls(const Message& message);
  Status tool_result(const Message& message);
  Status body(const Message& message, size_t index);
  void flush();

  const ChatRequest& request_;
  K2Options options_;
  std::vector<Segment> segments_;
  std::string pending_;            // text since the last marker
  size_t num_calls_ = 0;           // over the whole conversation
  size_t num_finished_turns_ = 0;  // messages up to the last assistant message without calls
};

void K2Writer::flush() {
  if (!pending_.empty()) segments_.push_back({std::exchange(pending_, {}), false});
}

void K2Writer::control(std::string_view text) {
  flush();
  segments_.push_back({std::string(text), true});
}

void K2Writer::think_mark(std::string_view mark) {
  if (options_.think_is_control) {
    control(mark);
  } else {
    text(mark);
  }
}

void K2Writer::open(Role role, std::string_view name) {
  control(role == Role::kUser ? "<|im_user|>" : role == Role::kAssistant ? "<|im_assistant|>" : "<|im_system|>");
  text(name);
  control("<|im_middle|>");
}

void K2Writer::declare_tools() {
  JsonValue list = JsonValue::array();
  for (const Tool& tool : request_.tools) list.mutable_items().push_back(tool.declaration);
  open(Role::kSystem, "tool_declare");
  if (is(K2Edition::kToolCalls) || is(K2Edition::k0905)) text("\n  # Tools\n  ");
  text(format_json_spaced(list));
  control("<|im_end|>");
}

void K2Writer::content(const Message& message) {
  for (const ContentPart& part : message.content) {
    if (part.kind == ContentPart::Kind::kText) {
      text(part.text);
      continue;
    }
    // `media_start` is the templates' own spelling.
    control("<|media_start|>image<|media_content|><|media_pad|><|media_end|>");
    if (!is(K2Edition::kFirstRelease)) text("\n");
  }
}

void K2Writer::calls(const Message& message) {
  if (message.tool_calls.empty()) return;
  control("<|tool_calls_section_begin|>");
  for (const ToolCall& call : message.tool_calls) {
    control("<|tool_call_begin|>");
    text(call.id ? *call.id : cat("functions.", call.name, ":", num_calls_));
    ++num_calls_;
    control("<|tool_call_argument_begin|>");
    if (call.arguments.is_null()) {
      text("{}");
    } else {
      text(call.arguments.is_string() ? call.arguments.text() : format_json_spaced(call.arguments));
    }
    control("<|tool_call_end|>");
  }
  control("<|tool_calls_section_end|>");
}

Status K2Writer::tool_result(const Message& message) {
  if (!is(K2Edition::kFirstRelease)) {
    if (!message.tool_call_id) {
      return Status::invalid("messages: expected a tool_call_id on every tool message of this chat format, found none");
    }
    text(cat("## Return of ", *message.tool_call_id, is(K2Edition::kThinking) ? "\n" : "\n    "));
  }
  content(message);
  return Status::ok();
}

Status K2Writer::body(const Message& message, size_t index) {
  if (message.role == Role::kTool) return tool_result(message);
  const bool is_assistant = message.role == Role::kAssistant;
  if (is_assistant && is(K2Edition::kThinking)) {
    think_mark("<think>");
    if (index >= num_finished_turns_) text(message.reasoning);
    think_mark("</think>");
  }
  content(message);
  if (is_assistant && !is(K2Edition::kFirstRelease)) calls(message);
  return Status::ok();
}

Result<std::vector<Segment>> K2Writer::render() {
  const std::vector<Message>& messages = request_.messages;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == Role::kAssistant && messages[i].tool_calls.empty()) num_finished_turns_ = i + 1;
  }
  if (!request_.tools.empty()) declare_tools();
  if (messages.empty() || messages[0].role != Role::kSystem) {
    open(Role::kSystem, "system");
    text(is(K2Edition::kFirstRelease) ? "You are a helpful assistant"
                                      : "You are Kimi, an AI assistant created by Moonshot AI.");
    control("<|im_end|>");
  }
  const bool prompt = request_.add_generation_prompt && !request_.continue_final_message;
  const bool last_stays_open = request_.continue_final_message || (!prompt && is(K2Edition::k0905));
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    const bool named = !message.name.empty() && !is(K2Edition::kFirstRelease);
    open(message.role, named ? std::string_view(message.name) : role_name(message.role));
    TANDEM_RETURN_IF_ERROR(body(message, i));
    if (i + 1 < messages.size() || !last_stays_open) control("<|im_end|>");
  }
  if (prompt) open(Role::kAssistant, "assistant");
  flush();
  return std::move(segments_);
}

}  // namespace

Result<std::vector<Segment>> render_k2(const ChatRequest& request, const K2Options& options) {
  return K2Writer(request, options).render();
}

}  // namespace tandem

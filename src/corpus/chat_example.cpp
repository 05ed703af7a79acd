#include "corpus/chat_example.h"

#include "base/cat.h"
#include "text/chat_format.h"
#include "text/segment.h"

namespace tandem {
namespace {

bool is_control(const Segment& segment, std::string_view text) { return segment.is_control && segment.text == text; }

// Behind the tag that begins at `open`, an <|open|>.
size_t tag_end(const std::vector<Segment>& segments, size_t open) {
  while (!is_control(segments[open], "<|sep|>")) ++open;
  return open + 1;
}

// Only the renderer makes control segments, so a tag is a tag: no text of a user can look like one here.
bool opens_assistant(const std::vector<Segment>& segments, size_t open, size_t end) {
  if (end - open < 6 || segments[open + 1].text != "message") return false;
  return segments[open + 2].text == " role" && segments[open + 4].text == role_name(Role::kAssistant);
}

// One mark a segment: trained or not. A last assistant turn that is open has nothing to train yet.
std::vector<uint8_t> trained_segments(const std::vector<Segment>& segments) {
  std::vector<uint8_t> trained(segments.size());
  for (size_t i = 0; i < segments.size();) {
    if (!is_control(segments[i], "<|open|>")) {
      ++i;
      continue;
    }
    const size_t header_end = tag_end(segments, i);
    const bool is_assistant = opens_assistant(segments, i, header_end);
    i = header_end;
    if (!is_assistant || i == segments.size()) continue;
    for (i = tag_end(segments, i); i < segments.size(); ++i) {
      trained[i] = 1;
      if (is_control(segments[i], "<|end_of_msg|>")) break;
    }
  }
  return trained;
}

// The reply behind the generation prompt.
Result<std::vector<Segment>> reply_segments(const Tokenizer& tokenizer, const ChatExample& example) {
  ChatRequest alone;
  alone.messages = {example.reply};
  alone.thinking = {example.request.thinking.enabled, std::nullopt};
  alone.add_generation_prompt = false;
  auto rendered = render_chat(tokenizer, alone);
  if (!rendered.is_ok()) return rendered.status();
  std::vector<Segment> segments = std::move(rendered).value();
  const size_t begin = tag_end(segments, tag_end(segments, 0));
  segments.erase(segments.begin(), segments.begin() + static_cast<std::ptrdiff_t>(begin));
  return segments;
}

}  // namespace

std::string_view chat_family_name(ChatFamily family) {
  switch (family) {
    case ChatFamily::kGreeting: return "greeting";
    case ChatFamily::kArithmetic: return "arithmetic";
    case ChatFamily::kCopy: return "copy";
    case ChatFamily::kRecall: return "recall";
    case ChatFamily::kMultiTurn: return "multi_turn";
    case ChatFamily::kReading: return "reading";
    case ChatFamily::kToolCall: return "tool_call";
    case ChatFamily::kToolAnswer: return "tool_answer";
    case ChatFamily::kUnknownTool: return "unknown_tool";
    case ChatFamily::kJson: return "json";
    case ChatFamily::kEveryday: return "everyday";
  }
  return "";
}

Result<ChatTokens> encode_example(const Tokenizer& tokenizer, const ChatExample& example) {
  auto format = detect_chat_format(tokenizer);
  if (!format.is_ok()) return format.status();
  if (format.value() != ChatFormat::kXtml) {
    return Status::unsupported("chat data: expected a tokenizer with the control names of the K3 format");
  }
  auto prompt = render_chat(tokenizer, example.request);
  if (!prompt.is_ok()) return prompt.status();
  auto reply = reply_segments(tokenizer, example);
  if (!reply.is_ok()) return reply.status();

  ChatTokens out;
  const auto append = [&](const Segment& segment, uint8_t trained) {
    if (segment.is_control) {
      tokenizer.encode_control_to(segment.text, out.ids);
    } else {
      tokenizer.encode_text_to(segment.text, out.ids);
    }
    out.loss.resize(out.ids.size(), trained);
  };
  const std::vector<uint8_t> trained = trained_segments(prompt.value());
  for (size_t i = 0; i < trained.size(); ++i) append(prompt.value()[i], trained[i]);
  out.num_prompt = out.ids.size();
  for (const Segment& segment : reply.value()) append(segment, 1);
  return out;
}

}  // namespace tandem

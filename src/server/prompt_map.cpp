#include "server/prompt_map.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/cat.h"
#include "text/xtml_reply_header.h"

namespace tandem {
namespace {

// What the K2 family's template puts in front of a conversation without a system prompt.
constexpr std::string_view kK2System = "You are Kimi, an AI assistant created by Moonshot AI.";
constexpr std::string_view kMoreTools = "## New Tools";  // begins the declaration of a message's own tools

class Reader {
 public:
  Reader(const Tokenizer& tokenizer, std::span<const TokenId> prompt, const std::vector<int64_t>& message_numbers)
      : tokenizer_(tokenizer), prompt_(prompt), message_numbers_(message_numbers) {}

  std::vector<PromptPlace> read_xtml();
  std::vector<PromptPlace> read_k2();

 private:
  bool is(int64_t at, std::string_view name) const {
    return at < size() && tokenizer_.is_control(prompt_[static_cast<size_t>(at)]) &&
           tokenizer_.token_bytes(prompt_[static_cast<size_t>(at)]) == name;
  }
  int64_t size() const { return static_cast<int64_t>(prompt_.size()); }
  bool is_control(int64_t at) const { return tokenizer_.is_control(prompt_[static_cast<size_t>(at)]); }
  std::string text(int64_t begin, int64_t end) const;
  // From `at` on to the first control id: its place, or the end.
  int64_t end_of_text(int64_t at) const;
  // The current element ends before `at` and another begins there.
  PromptPlace& begin_place(PromptPart part, int64_t at);
  void open_message(const XtmlHeader& header, int64_t at, int64_t body);
  void open_element(const XtmlHeader& header, int64_t at, int64_t body);

  const Tokenizer& tokenizer_;
  std::span<const TokenId> prompt_;
  const std::vector<int64_t>& message_numbers_;
  std::vector<PromptPlace> places_;
  int64_t num_messages_ = 0;
  int64_t num_calls_ = 0;  // of the current message
};

std::string Reader::text(int64_t begin, int64_t end) const {
  std::string out;
  for (int64_t i = begin; i < end; ++i) out += tokenizer_.token_bytes(prompt_[static_cast<size_t>(i)]);
  return out;
}

int64_t Reader::end_of_text(int64_t at) const {
  while (at < size() && !is_control(at)) ++at;
  return at;
}

PromptPlace& Reader::begin_place(PromptPart part, int64_t at) {
  PromptPlace place;
  if (!places_.empty()) {
    place.message = places_.back().message;
    place.role = places_.back().role;
    places_.back().end = at;
    if (places_.back().begin == at) places_.pop_back();
  }
  place.part = part;
  place.begin = at;
  place.body_begin = at;
  place.end = size();
  return places_.emplace_back(std::move(place));
}

void Reader::open_message(const XtmlHeader& header, int64_t at, int64_t body) {
  const std::string type = header.attribute("type").value_or("");
  PromptPart part = PromptPart::kHeader;
  if (type == "thinking-effort") part = PromptPart::kEffort;
  if (type == "tool-choice") part = PromptPart::kToolChoice;
  if (type == "response-format") part = PromptPart::kResponseFormat;
  const bool declares = type == "tool-declare";
  const bool is_first = declares && !text(body, std::min(end_of_text(body), body + 16)).starts_with(kMoreTools);
  if (is_first && num_messages_ == 0) part = PromptPart::kTools;
  PromptPlace& place = begin_place(part, at);
  place.message.reset();
  place.role = header.attribute("role").value_or("");
  place.body_begin = body;
  num_calls_ = 0;
  if (part != PromptPart::kHeader) return;
  const auto number = static_cast<size_t>(num_messages_++);
  place.message = number < message_numbers_.size() ? message_numbers_[number] : static_cast<int64_t>(number);
  // The body of a user's, system's or tool's message is its content; an assistant's has elements of its own.
  if (place.role == "assistant" || body >= size()) return;
  PromptPlace& content = begin_place(PromptPart::kContent, body);
  if (declares) content.detail = "tools";
}

void Reader::open_element(const XtmlHeader& header, int64_t at, int64_t body) {
  PromptPart part = PromptPart::kContent;
  std::string detail;
  switch (header.tag) {
    case XtmlTag::kThink: part = PromptPart::kReasoning; break;
    case XtmlTag::kResponse: break;
    case XtmlTag::kTools: part = PromptPart::kToolCall; break;
    case XtmlTag::kCall:
      part = PromptPart::kToolCall;
      detail = cat("[", num_calls_++, "].function.name");
      break;
    case XtmlTag::kArgument:
    case XtmlTag::kJson: {
      part = PromptPart::kToolCall;
      const std::string key = header.attribute("key").value_or("");
      detail = cat("[", std::max<int64_t>(num_calls_ - 1, 0), "].function.arguments", key.empty() ? "" : ".", key);
      break;
    }
    case XtmlTag::kMessage:
    case XtmlTag::kUnknown: return;
  }
  PromptPlace& place = begin_place(part, at);
  place.body_begin = body;
  place.detail = std::move(detail);
}

std::vector<PromptPlace> Reader::read_xtml() {
  begin_place(PromptPart::kHeader, 0);
  for (int64_t at = 0; at < size();) {
    if (!is(at, "<|open|>")) {
      ++at;
      continue;
    }
    const int64_t header_end = end_of_text(at + 1);
    const int64_t body = is(header_end, "<|sep|>") ? header_end + 1 : header_end;
    const XtmlHeader header = parse_xtml_header(text(at + 1, header_end));
    if (header.tag == XtmlTag::kMessage) {
      open_message(header, at, body);
    } else {
      open_element(header, at, body);
    }
    at = body;
  }
  return std::move(places_);
}

std::vector<PromptPlace> Reader::read_k2() {
  begin_place(PromptPart::kHeader, 0);
  for (int64_t at = 0; at < size(); ++at) {
    const bool opens = is(at, "<|im_user|>") || is(at, "<|im_assistant|>") || is(at, "<|im_system|>");
    if (opens) {
      const int64_t middle = end_of_text(at + 1);
      const std::string name = text(at + 1, middle);
      const bool is_tools = name == "tool_declare" && num_messages_ == 0;
      PromptPlace& place = begin_place(is_tools ? PromptPart::kTools : PromptPart::kHeader, at);
      place.message.reset();
      place.role = is(at, "<|im_user|>") ? "user" : is(at, "<|im_assistant|>") ? "assistant" : name;
      place.body_begin = std::min(middle + 1, size());
      num_calls_ = 0;
      if (is_tools) continue;
      const int64_t body = std::min(middle + 1, size());
      const bool is_template = message_numbers_.empty() && num_messages_ == 0 && name == "system" &&
                               text(body, end_of_text(body)) == kK2System;
      const auto number = static_cast<size_t>(is_template ? 0 : num_messages_++);
      place.message = number < message_numbers_.size() ? message_numbers_[number] : static_cast<int64_t>(number);
      if (is_template) place.message = -1;
      if (body < size()) begin_place(PromptPart::kContent, body);
      at = std::min(middle, size() - 1);
    } else if (is(at, "<think>")) {
      begin_place(PromptPart::kReasoning, at).body_begin = at + 1;
    } else if (is(at, "</think>") && at + 1 < size()) {
      begin_place(PromptPart::kContent, at + 1);
    } else if (is(at, "<|tool_call_begin|>")) {
      begin_place(PromptPart::kToolCall, at).detail = cat("[", num_calls_++, "].id");
    } else if (is(at, "<|tool_call_argument_begin|>")) {
      begin_place(PromptPart::kToolCall, at).detail =
          cat("[", std::max<int64_t>(num_calls_ - 1, 0), "].function.arguments");
    }
  }
  return std::move(places_);
}

}  // namespace

std::string PromptPlace::field() const {
  switch (part) {
    case PromptPart::kPrompt: return "prompt";
    case PromptPart::kTools: return "tools";
    case PromptPart::kEffort: return "reasoning_effort";
    case PromptPart::kToolChoice: return "tool_choice";
    case PromptPart::kResponseFormat: return "response_format";
    default: break;
  }
  // A template's own message, in front of the conversation.
  if (message && *message < 0) return "system prompt of the format";
  const std::string head = message ? cat("messages[", *message, "]") : "messages";
  switch (part) {
    case PromptPart::kContent: return cat(head, ".", detail.empty() ? "content" : detail);
    case PromptPart::kReasoning: return cat(head, ".reasoning_content");
    case PromptPart::kToolCall: return cat(head, ".tool_calls", detail);
    default: return head;
  }
}

PromptMap::PromptMap(const Tokenizer& tokenizer, std::optional<ChatFormat> format, std::span<const TokenId> prompt,
                     std::vector<int64_t> message_numbers) {
  Reader reader(tokenizer, prompt, message_numbers);
  if (format == ChatFormat::kXtml) places_ = reader.read_xtml();
  if (format == ChatFormat::kK2) places_ = reader.read_k2();
  const bool is_chat = !places_.empty() && places_[0].begin == 0 &&
                       std::any_of(places_.begin(), places_.end(), [](const PromptPlace& place) {
                         return place.message || place.part != PromptPart::kHeader;
                       });
  if (is_chat) return;
  places_.assign(1, PromptPlace{});
  places_[0].end = static_cast<int64_t>(prompt.size());
}

const PromptPlace& PromptMap::at(int64_t position) const {
  const auto behind = std::upper_bound(places_.begin(), places_.end(), position,
                                       [](int64_t wanted, const PromptPlace& place) { return wanted < place.begin; });
  return behind == places_.begin() ? places_.front() : *(behind - 1);
}

}  // namespace tandem

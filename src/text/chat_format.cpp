#include "text/chat_format.h"

#include <span>
#include <string>
#include <string_view>

#include "base/cat.h"
#include "text/k2_renderer.h"
#include "text/xtml_renderer.h"

namespace tandem {
namespace {

constexpr std::string_view kXtmlNames[] = {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"};
constexpr std::string_view kK2Names[] = {"<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>",
                                         "<|im_end|>"};

std::string missing_names(const Tokenizer& tokenizer, std::span<const std::string_view> names) {
  std::string missing;
  for (const std::string_view name : names) {
    if (!tokenizer.control_id(name)) missing += cat(missing.empty() ? "" : " ", name);
  }
  return missing;
}

// A control segment consists of <|names|>, with plain text between them in an image block.
Status check_names(const Tokenizer& tokenizer, const std::vector<Segment>& segments) {
  for (const Segment& segment : segments) {
    if (!segment.is_control) continue;
    const std::string_view text = segment.text;
    for (size_t begin = text.find("<|"); begin != std::string_view::npos;) {
      const size_t end = text.find("|>", begin + 2);
      if (end == std::string_view::npos) break;
      const std::string_view name = text.substr(begin, end + 2 - begin);
      if (!tokenizer.control_id(name)) {
        return Status::unsupported(
            cat("chat: this request needs the control name ", name, ", which the tokenizer lacks"));
      }
      begin = text.find("<|", end + 2);
    }
  }
  return Status::ok();
}

}  // namespace

Result<ChatFormat> detect_chat_format(const Tokenizer& tokenizer) {
  const std::string missing_xtml = missing_names(tokenizer, kXtmlNames);
  if (missing_xtml.empty()) return ChatFormat::kXtml;
  const std::string missing_k2 = missing_names(tokenizer, kK2Names);
  if (missing_k2.empty()) return ChatFormat::kK2;
  return Status::unsupported(cat("chat: the tokenizer's control names fit no known format: the Kimi K3 format lacks ",
                                 missing_xtml, "; the Kimi K2 format lacks ", missing_k2));
}

Result<std::vector<Segment>> render_chat(const Tokenizer& tokenizer, const ChatRequest& request) {
  const auto format = detect_chat_format(tokenizer);
  if (!format.is_ok()) return format.status();
  K2Options k2;
  k2.think_is_control = tokenizer.control_id("<think>") && tokenizer.control_id("</think>");
  auto segments = format.value() == ChatFormat::kXtml ? render_xtml(request) : render_k2(request, k2);
  if (!segments.is_ok()) return segments.status();
  TANDEM_RETURN_IF_ERROR(check_names(tokenizer, segments.value()));
  return segments;
}

}  // namespace tandem

#include "text/reply_builder.h"

#include <utility>

#include "base/utf8.h"
#include "text/unicode_classes.h"

namespace tandem {

using Kind = ReplyEvent::Kind;

std::string_view without_leading_space(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Step step = decode_utf8(text.substr(at));
    if (!step.valid || !is_white_space(step.code_point)) break;
    at += step.size;
  }
  return text.substr(at);
}

bool is_blank_text(std::string_view text) { return without_leading_space(text).empty(); }

void ReplyBuilder::emit(Kind kind, std::string_view text) {
  const auto index = static_cast<int64_t>(calls_.size());
  const bool is_text = kind == Kind::kReasoning || kind == Kind::kContent || kind == Kind::kToolArguments;
  if (is_text && !events_.empty() && events_.back().kind == kind) {
    events_.back().text += text;
    return;
  }
  ReplyEvent& event = events_.emplace_back();
  event.kind = kind;
  event.text = text;
  if (kind == Kind::kToolCallBegin || kind == Kind::kToolArguments || kind == Kind::kToolCallEnd) {
    event.call_index = index;
  }
}

void ReplyBuilder::end_reasoning() {
  if (reasoning_ended_ || reasoning_.empty()) return;
  reasoning_ended_ = true;
  emit(Kind::kReasoningEnd, "");
}

void ReplyBuilder::reasoning(std::string_view text) {
  if (text.empty()) return;
  reasoning_ += text;
  emit(Kind::kReasoning, text);
}

void ReplyBuilder::content(std::string_view text) {
  if (text.empty()) return;
  if (!has_content_) {
    const bool blank = is_blank_text(text);
    held_space_ += text;
    if (blank) return;
    has_content_ = true;
    end_reasoning();
    emit(Kind::kContent, held_space_);
    content_ = std::exchange(held_space_, {});
    return;
  }
  end_reasoning();
  content_ += text;
  emit(Kind::kContent, text);
}

void ReplyBuilder::begin_call(std::string name, std::optional<std::string> id) {
  call_ = {std::move(id), std::move(name), ""};
  if (!reports_calls_ || !streams_arguments_) return;
  end_reasoning();
  emit(Kind::kToolCallBegin, call_.name);
  events_.back().call_id = call_.id;
}

void ReplyBuilder::arguments(std::string_view text) {
  if (!reports_calls_ || text.empty()) return;
  call_.arguments += text;
  if (streams_arguments_) emit(Kind::kToolArguments, text);
}

void ReplyBuilder::end_call() {
  if (!reports_calls_) return;
  if (is_blank_text(call_.arguments)) arguments("{}");
  if (!streams_arguments_) {
    end_reasoning();
    emit(Kind::kToolCallBegin, call_.name);
    events_.back().call_id = call_.id;
    emit(Kind::kToolArguments, call_.arguments);
  }
  emit(Kind::kToolCallEnd, "");
  calls_.push_back(std::exchange(call_, {}));
}

void ReplyBuilder::abandon_call() {
  call_ = {};
  count_unfinished_call();
}

ParsedReply ReplyBuilder::finish(ReplyStop stop) {
  if (calls_.empty() && !held_space_.empty()) {
    end_reasoning();
    emit(Kind::kContent, held_space_);
    content_ = std::exchange(held_space_, {});
  }
  ParsedReply reply;
  reply.reasoning = std::move(reasoning_);
  if (calls_.empty() || has_content_) reply.content = std::move(content_);
  reply.has_unfinished_call = unfinished_;
  if (stop == ReplyStop::kTokenLimit && (unfinished_ || calls_.empty())) {
    reply.finish = ReplyFinish::kLength;
  } else {
    reply.finish = calls_.empty() ? ReplyFinish::kStop : ReplyFinish::kToolCalls;
  }
  reply.tool_calls = std::move(calls_);
  emit(Kind::kFinished, "");
  events_.back().finish = reply.finish;
  return reply;
}

void ReplyBuilder::take_events(std::vector<ReplyEvent>& events) {
  for (ReplyEvent& event : events_) events.push_back(std::move(event));
  events_.clear();
}

}  // namespace tandem

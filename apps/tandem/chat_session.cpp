#include "chat_session.h"

namespace tandem::app {

ChatSession::ChatSession(LoadedModel& model, const Tokenizer& tokenizer, ChatFormat format)
    : tokenizer_(&tokenizer), format_(format), generator_(model) {}

Result<ChatSession> ChatSession::create(LoadedModel& model) {
  const Result<const Tokenizer*> tokenizer = model.tokenizer();
  if (!tokenizer.is_ok()) return tokenizer.status();
  const Result<ChatFormat> format = detect_chat_format(*tokenizer.value());
  if (!format.is_ok()) return format.status();
  return ChatSession(model, *tokenizer.value(), format.value());
}

Result<std::vector<TokenId>> ChatSession::prompt_for(const std::string& user_text) {
  pending_ = {text_message(Role::kUser, user_text)};
  ChatRequest request;
  request.messages = history_;
  request.messages.insert(request.messages.end(), pending_.begin(), pending_.end());
  request.thinking.effort = ThinkingEffort::kMax;
  const Result<std::vector<Segment>> segments = render_chat(*tokenizer_, request);
  if (!segments.is_ok()) return segments.status();
  return encode_segments(*tokenizer_, segments.value());
}

Result<ChatTurn> ChatSession::run(const GenerateRequest& request, FunctionRef<void(const ReplyEvent&)> on_event) {
  ReplyOptions options;
  options.report_tool_calls = false;  // none is declared here
  options.start = format_ == ChatFormat::kXtml ? ReplyRegion::kThink : ReplyRegion::kResponse;
  Result<ReplyParser> created = ReplyParser::create(*tokenizer_, format_, options);
  if (!created.is_ok()) return created.status();
  ReplyParser parser = std::move(created).value();
  std::vector<ReplyEvent> events;
  const auto report = [&] {
    for (const ReplyEvent& event : events) on_event(event);
    events.clear();
  };

  ChatTurn turn;
  Result<GenerateResult> result = generator_.run(request, [&](TokenId id) {
    parser.append(id, events);
    report();
    return true;
  });
  if (!result.is_ok()) return result.status();
  turn.result = std::move(result).value();
  const bool stopped = turn.result.finish_reason == FinishReason::kStop;
  turn.reply = parser.finish(stopped ? ReplyStop::kStopToken : ReplyStop::kTokenLimit, events);
  report();
  turn.text = tokenizer_->decode(turn.result.tokens, /*skip_special=*/false).value();
  history_.insert(history_.end(), pending_.begin(), pending_.end());
  history_.push_back(reply_message(turn.reply));
  return turn;
}

}  // namespace tandem::app

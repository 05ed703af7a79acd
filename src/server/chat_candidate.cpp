#include "server/chat_candidate.h"

#include <utility>

namespace tandem {

using Kind = ChatDelta::Kind;
using Event = ReplyEvent::Kind;

Result<ChatCandidate> ChatCandidate::create(const Tokenizer& tokenizer, const ChatPrompt& prompt,
                                            const GenerationOptions& options, ChatReading reading, CallIds& call_ids) {
  auto parser = ReplyParser::create(tokenizer, prompt.format, prompt.reply);
  if (!parser.is_ok()) return parser.status();
  return ChatCandidate(std::move(parser).value(), tokenizer, prompt, options, reading, call_ids);
}

ChatCandidate::ChatCandidate(ReplyParser parser, const Tokenizer& tokenizer, const ChatPrompt& prompt,
                             const GenerationOptions& options, ChatReading reading, CallIds& call_ids)
    : parser_(std::move(parser)),
      tokenizer_(&tokenizer),
      reading_(reading),
      call_ids_(&call_ids),
      stops_(options.stop, options.include_stop),
      parallel_calls_(prompt.parallel_calls),
      ignore_eos_(options.ignore_eos),
      start_(prompt.reply.start),
      region_(prompt.reply.start) {
  if (options.logprobs) logprobs_.emplace(tokenizer, *options.logprobs);
}

void ChatCandidate::append(const TokenOutput& output, std::vector<ChatDelta>& deltas) {
  if (over_) return;
  ++num_tokens_;
  if (logprobs_) logprobs_->token(output);
  std::vector<ReplyEvent> events;
  parser_.append(output.token, events);
  count_reasoning(events, tokenizer_->is_control(output.token));
  take(events, deltas);
}

// Tokens up to the last one that gave reasoning before anything else; later ones each for itself. A marker that made
// waiting bytes certain is no reasoning.
void ChatCandidate::count_reasoning(const std::vector<ReplyEvent>& events, bool is_control) {
  for (const ReplyEvent& event : events) {
    if (event.kind == Event::kContent || event.kind == Event::kToolCallBegin) region_ = ReplyRegion::kResponse;
    if (event.kind != Event::kReasoning) continue;
    if (start_ == ReplyRegion::kThink && region_ == ReplyRegion::kThink) {
      num_reasoning_tokens_ = num_tokens_ - (is_control ? 1 : 0);
    } else {
      ++num_reasoning_tokens_;
    }
  }
}

void ChatCandidate::finish(EngineFinish finish, std::vector<ChatDelta>& deltas) {
  if (over_) return;
  const ReplyStop stop = finish == EngineFinish::kLength ? ReplyStop::kTokenLimit : ReplyStop::kStopToken;
  std::vector<ReplyEvent> events;
  const bool had_end = parser_.finished();
  if (logprobs_) logprobs_->end();
  parser_.finish(stop, events);
  count_reasoning(events, false);
  take(events, deltas);
  if (over_) return;  // a stop string in what was held back
  give_content(stops_.flush(), deltas);
  over_ = true;
  // With ignore_eos the reply goes on behind its end, unread, until the limit.
  const bool ran_on = had_end && ignore_eos_ && finish == EngineFinish::kLength && reply_.calls.empty();
  if (ran_on) reply_.finish = ReplyFinish::kLength;
}

void ChatCandidate::take(std::vector<ReplyEvent>& events, std::vector<ChatDelta>& deltas) {
  for (ReplyEvent& event : events) {
    if (over_) return;
    if (event.kind != Event::kContent && event.kind != Event::kFinished) give_content(stops_.flush(), deltas);
    switch (event.kind) {
      case Event::kReasoning:
        if (reading_.include_reasoning) {
          const Kind kind = reading_.separate_reasoning ? Kind::kReasoning : Kind::kContent;
          give({kind, std::move(event.text), 0, {}, {}}, deltas);
        }
        break;
      case Event::kReasoningEnd:
        if (reading_.include_reasoning && reading_.separate_reasoning)
          give({Kind::kReasoningEnd, {}, 0, {}, {}}, deltas);
        break;
      case Event::kContent:
        if (logprobs_) logprobs_->content(event.text);
        give_content(stops_.append(event.text), deltas);
        if (stops_.match()) end_early();
        break;
      case Event::kToolCallBegin: {
        std::string id = call_ids_->next(event.text, event.call_index);
        give({Kind::kCallBegin, std::move(event.text), event.call_index, std::move(id), {}}, deltas);
        break;
      }
      case Event::kToolArguments:
        give({Kind::kCallArguments, std::move(event.text), event.call_index, {}, {}}, deltas);
        break;
      case Event::kToolCallEnd:
        reply_.calls.back().is_complete = true;
        if (!parallel_calls_) end_early();
        break;
      case Event::kFinished: reply_.finish = event.finish; break;
    }
  }
}

// Decided here, before the engine knows.
void ChatCandidate::end_early() {
  over_ = true;
  reply_.finish = reply_.calls.empty() ? ReplyFinish::kStop : ReplyFinish::kToolCalls;
}

void ChatCandidate::give_content(std::string text, std::vector<ChatDelta>& deltas) {
  if (text.empty()) return;
  matched_bytes_ += static_cast<int64_t>(text.size());
  ChatDelta delta{Kind::kContent, std::move(text), 0, {}, {}};
  if (logprobs_) delta.logprobs = logprobs_->take(matched_bytes_);
  give(std::move(delta), deltas);
}

void ChatCandidate::give(ChatDelta delta, std::vector<ChatDelta>& deltas) {
  switch (delta.kind) {
    case Kind::kReasoning: reply_.reasoning += delta.text; break;
    case Kind::kReasoningEnd: break;
    case Kind::kContent:
      reply_.content += delta.text;
      if (!delta.logprobs.empty()) reply_.logprobs += (reply_.logprobs.empty() ? "" : ",") + delta.logprobs;
      break;
    case Kind::kCallBegin: reply_.calls.push_back({delta.call_id, delta.text, {}, false}); break;
    case Kind::kCallArguments: reply_.calls.back().arguments += delta.text; break;
  }
  deltas.push_back(std::move(delta));
}

}  // namespace tandem

#include "server/chat_run.h"

#include <utility>

#include "base/cat.h"
#include "server/cache_report.h"
#include "text/reply_json.h"

namespace tandem {

using Kind = ChatDelta::Kind;

std::string token_ids_json(const std::vector<TokenId>& ids) {
  std::string out = "[";
  for (const TokenId id : ids) out += cat(out.size() > 1 ? "," : "", id.value);
  return out + "]";
}

ChatRun::ChatRun(std::shared_ptr<HttpExchange> exchange, std::shared_ptr<const ApiContext> context, ChatAsk ask)
    : GenerationRun(std::move(exchange), std::move(context), new_request_id("chatcmpl-"), ask.options.stream),
      ask_(std::move(ask)),
      call_ids_(ask_.prompt.format, ask_.prompt.request.messages),
      prompt_tokens_(static_cast<int64_t>(ask_.prompt.ids.size()) - ask_.prompt.opener_tokens),
      ids_(static_cast<size_t>(ask_.options.num_candidates)) {
  // Not needed while the reply is written, which may take long.
  ask_.prompt.request = {};
  ask_.prompt.segments = {};
}

Result<std::shared_ptr<ChatRun>> ChatRun::create(std::shared_ptr<HttpExchange> exchange,
                                                 std::shared_ptr<const ApiContext> context, ChatAsk ask) {
  std::shared_ptr<ChatRun> run(new ChatRun(std::move(exchange), std::move(context), std::move(ask)));
  for (int64_t i = 0; i < run->ask_.options.num_candidates; ++i) {
    auto candidate = ChatCandidate::create(run->context().tokenizer, run->ask_.prompt, run->ask_.options,
                                           run->ask_.reading, run->call_ids_);
    if (!candidate.is_ok()) return candidate.status();
    run->candidates_.push_back(std::move(candidate).value());
  }
  return run;
}

void ChatRun::begin() {
  if (ask_.options.explain_cache) cache_json_ = compact_cache_json(context().engine, engine_id(0), ask_.owner);
}

HttpHeaders ChatRun::headers() const {
  return {{"X-Msh-Usage-Prompt-Tokens", cat(prompt_tokens_)},
          {"X-Msh-Usage-Cached-Tokens", cat(reported_cached_tokens())}};
}

Usage ChatRun::usage_of(const ChatCandidate& candidate) const {
  return {prompt_tokens_, candidate.num_tokens(), reported_cached_tokens(), candidate.num_reasoning_tokens()};
}

Usage ChatRun::usage() const {
  Usage sum{prompt_tokens_, 0, reported_cached_tokens(), 0};
  for (const ChatCandidate& candidate : candidates_) {
    sum.completion_tokens += candidate.num_tokens();
    sum.reasoning_tokens += candidate.num_reasoning_tokens();
  }
  return sum;
}

bool ChatRun::is_over(size_t, int64_t candidate) const { return candidates_[static_cast<size_t>(candidate)].is_over(); }

void ChatRun::open_stream(std::string& text) {
  head_ = cat(R"(data: {"id":")", id(), R"(","object":"chat.completion.chunk","created":)", created(), R"(,"model":")",
              json_escaped(ask_.model), R"(","choices":[)");
  for (size_t i = 0; i < candidates_.size(); ++i) {
    frame(text, cat(R"({"index":)", i, R"(,"delta":{"role":"assistant","content":""},"finish_reason":null})"));
    if (i > 0 || !ask_.options.return_token_ids) continue;
    // The prompt's ids go with the first frame of all, behind its choices.
    text.insert(text.rfind("}\n\n"), cat(R"(,"prompt_token_ids":)", token_ids_json(ask_.prompt.ids)));
  }
}

void ChatRun::frame(std::string& text, std::string_view choice, bool may_have_usage) const {
  text += head_;
  text += choice;
  text += ']';
  if (ask_.options.continuous_usage && may_have_usage) {
    text += R"(,"usage":)";
    text += usage_json(usage(), cache_json_);
  }
  text += "}\n\n";
}

std::string ChatRun::delta_json(const ChatDelta& delta) const {
  const std::string text = json_escaped(delta.text);
  switch (delta.kind) {
    case Kind::kReasoning:
    case Kind::kReasoningEnd: {
      const bool copies = context().options.copy_reasoning;
      return cat(R"("reasoning_content":")", text, '"', copies ? cat(R"(,"reasoning":")", text, '"') : "");
    }
    case Kind::kContent: return cat(R"("content":")", text, '"');
    case Kind::kCallBegin:
      return cat(R"("tool_calls":[{"index":)", delta.call_index, R"(,"id":")", json_escaped(delta.call_id),
                 R"(","type":"function","function":{"name":")", text, R"(","arguments":""}}])");
    case Kind::kCallArguments:
      return cat(R"("tool_calls":[{"index":)", delta.call_index, R"(,"function":{"arguments":")", text, R"("}}])");
  }
  return {};
}

// The ids sampled since the last frame of this candidate.
std::string ChatRun::take_ids(size_t index) {
  std::string out = token_ids_json(ids_[index]);
  ids_[index].clear();
  return out;
}

void ChatRun::delta_frame(std::string& text, size_t index, const ChatDelta& delta) {
  std::string choice = cat(R"({"index":)", index, R"(,"delta":{)", delta_json(delta));
  const std::string ids = wants_ids() ? take_ids(index) : "";
  if (ask_.options.internal_content) choice += cat(R"(,"internal_content":{"token_ids":)", ids, "}");
  choice += "}";
  if (ask_.options.logprobs) {
    const bool has_entries = delta.kind == Kind::kContent && !delta.logprobs.empty();
    choice += has_entries ? cat(R"(,"logprobs":{"content":[)", delta.logprobs, "]}") : R"(,"logprobs":null)";
  }
  choice += R"(,"finish_reason":null)";
  if (ask_.options.return_token_ids) choice += cat(R"(,"token_ids":)", ids);
  choice += "}";
  frame(text, choice);
}

void ChatRun::end_frame(std::string& text, size_t index) {
  const ChatCandidate& candidate = candidates_[index];
  const std::string ids = ask_.options.return_token_ids ? cat(R"(,"token_ids":)", take_ids(index)) : "";
  frame(text,
        cat(R"({"index":)", index, R"(,"delta":{},"finish_reason":")", reply_finish_name(candidate.reply().finish), '"',
            ids, R"(,"usage":)", usage_json(usage_of(candidate), cache_json_), "}"));
}

void ChatRun::take(size_t, EngineOutput&& output, std::string& text) {
  const auto index = static_cast<size_t>(output.candidate);
  ChatCandidate& candidate = candidates_[index];
  std::vector<ChatDelta> deltas;
  const auto send = [&] {
    if (is_stream()) {
      for (const ChatDelta& delta : deltas) delta_frame(text, index, delta);
    }
    deltas.clear();
  };
  for (const TokenOutput& token : output.tokens) {
    if (candidate.is_over()) break;
    if (wants_ids()) ids_[index].push_back(token.token);
    candidate.append(token, deltas);
    send();
  }
  if (output.finish && !candidate.is_over()) {
    candidate.finish(*output.finish, deltas);
    send();
  }
  if (candidate.is_over() && is_stream()) end_frame(text, index);
}

std::string ChatRun::message_json(const ChatReply& reply) const {
  std::string calls;
  for (const ChatCall& call : reply.calls) {
    if (!call.is_complete) continue;
    calls += cat(calls.empty() ? "" : ",", R"({"id":")", json_escaped(call.id),
                 R"(","type":"function","function":{"name":")", json_escaped(call.name), R"(","arguments":")",
                 json_escaped(call.arguments), R"("}})");
  }
  const bool has_no_content = !calls.empty() && reply.content.empty();
  std::string out =
      cat(R"({"role":"assistant","content":)", has_no_content ? "null" : cat('"', json_escaped(reply.content), '"'));
  if (!reply.reasoning.empty()) {
    const std::string reasoning = json_escaped(reply.reasoning);
    out += cat(R"(,"reasoning_content":")", reasoning, '"');
    if (context().options.copy_reasoning) out += cat(R"(,"reasoning":")", reasoning, '"');
  }
  if (!calls.empty()) out += cat(R"(,"tool_calls":[)", calls, "]");
  return out + "}";
}

void ChatRun::complete(std::string& text) {
  if (is_stream()) {
    if (ask_.options.include_usage) {
      frame(text, "", false);
      text.insert(text.rfind("}\n\n"), cat(R"(,"usage":)", usage_json(usage(), cache_json_)));
    }
    text += "data: [DONE]\n\n";
    return;
  }
  text = cat(R"({"id":")", id(), R"(","object":"chat.completion","created":)", created(), R"(,"model":")",
             json_escaped(ask_.model), R"(","choices":[)");
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const ChatReply& reply = candidates_[i].reply();
    text += cat(i > 0 ? "," : "", R"({"index":)", i, R"(,"message":)", message_json(reply), R"(,"logprobs":)",
                ask_.options.logprobs ? cat(R"({"content":[)", reply.logprobs, "]}") : "null", R"(,"finish_reason":")",
                reply_finish_name(reply.finish), '"');
    if (ask_.options.return_token_ids) text += cat(R"(,"token_ids":)", take_ids(i));
    text += "}";
  }
  text += "]";
  if (ask_.options.return_token_ids) text += cat(R"(,"prompt_token_ids":)", token_ids_json(ask_.prompt.ids));
  text += cat(R"(,"usage":)", usage_json(usage(), cache_json_), "}");
}

}  // namespace tandem

#include "server/completion_run.h"

#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "server/cache_report.h"
#include "server/chat_run.h"
#include "text/reply_json.h"

namespace tandem {

CompletionRun::CompletionRun(std::shared_ptr<HttpExchange> exchange, std::shared_ptr<const ApiContext> context,
                             CompletionAsk ask)
    : GenerationRun(std::move(exchange), std::move(context), new_request_id("cmpl-"), ask.options.stream),
      ask_(std::move(ask)) {
  const size_t num_choices = ask_.prompts.size() * static_cast<size_t>(ask_.options.num_candidates);
  for (size_t i = 0; i < num_choices; ++i) {
    Choice& choice = choices_.emplace_back(this->context().tokenizer, ask_.options);
    if (ask_.options.logprobs) choice.logprobs.emplace(this->context().tokenizer, *ask_.options.logprobs);
  }
  echoed_.assign(num_choices, false);
}

std::shared_ptr<CompletionRun> CompletionRun::create(std::shared_ptr<HttpExchange> exchange,
                                                     std::shared_ptr<const ApiContext> context, CompletionAsk ask) {
  return std::shared_ptr<CompletionRun>(new CompletionRun(std::move(exchange), std::move(context), std::move(ask)));
}

void CompletionRun::begin() {
  if (ask_.options.explain_cache) cache_json_ = compact_cache_json(context().engine, engine_id(0), ask_.owner);
}

HttpHeaders CompletionRun::headers() const { return {}; }

Usage CompletionRun::usage() const {
  Usage sum;
  for (const auto& prompt : ask_.prompts) sum.prompt_tokens += static_cast<int64_t>(prompt.size());
  for (const Choice& choice : choices_) sum.completion_tokens += choice.num_tokens;
  sum.cached_tokens = cached_tokens();
  return sum;
}

bool CompletionRun::is_over(size_t prompt, int64_t candidate) const {
  return choices_[prompt * static_cast<size_t>(ask_.options.num_candidates) + static_cast<size_t>(candidate)].over;
}

void CompletionRun::open_stream(std::string&) {
  head_ = cat(R"(data: {"id":")", id(), R"(","object":"text_completion","created":)", created(), R"(,"model":")",
              json_escaped(ask_.model), R"(","choices":[)");
}

void CompletionRun::frame(std::string& text, std::string_view choice, bool may_have_usage) const {
  text += head_;
  text += choice;
  text += ']';
  if (ask_.options.continuous_usage && may_have_usage) text += cat(R"(,"usage":)", usage_json(usage(), cache_json_));
  text += "}\n\n";
}

// The prompt is shown as it is; stop strings are looked for behind it only.
void CompletionRun::echo_prompt(Choice& choice, size_t prompt, const EngineOutput& output, std::string& piece) {
  const std::vector<TokenId>& ids = ask_.prompts[prompt];
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string text = choice.decoder.append(ids[i]);
    piece += text;
    if (!choice.logprobs) continue;
    TokenOutput token{ids[i], std::nullopt, {}};
    if (i < output.prompt.size()) token = output.prompt[i];
    choice.logprobs->token(token, text);
  }
}

void CompletionRun::append(Choice& choice, const TokenOutput& token, std::string& piece) {
  ++choice.num_tokens;
  if (ask_.options.return_token_ids) choice.ids.push_back(token.token);
  const std::string text = choice.decoder.append(token.token);
  if (choice.logprobs) choice.logprobs->token(token, text);
  piece += choice.stops.append(text);
  if (!choice.stops.match()) return;
  choice.over = true;
  choice.finish = "stop";
  choice.stop_reason = cat('"', json_escaped(*choice.stops.match()), '"');
}

void CompletionRun::end_choice(Choice& choice, EngineFinish finish, std::string& piece) {
  piece += choice.stops.append(choice.decoder.flush());
  choice.over = true;
  if (choice.stops.match()) {
    choice.finish = "stop";
    choice.stop_reason = cat('"', json_escaped(*choice.stops.match()), '"');
    return;
  }
  piece += choice.stops.flush();
  choice.finish = finish == EngineFinish::kLength ? "length" : "stop";
}

void CompletionRun::give(size_t index, std::string piece, std::string& text) {
  Choice& choice = choices_[index];
  if (!is_stream()) {
    choice.text += piece;
    return;
  }
  if (!piece.empty()) {
    std::string body =
        cat(R"({"index":)", index, R"(,"text":")", json_escaped(piece), R"(","logprobs":)",
            choice.logprobs ? choice.logprobs->take() : "null", R"(,"finish_reason":null,"stop_reason":null)");
    if (ask_.options.return_token_ids) body += cat(R"(,"token_ids":)", token_ids_json(std::exchange(choice.ids, {})));
    frame(text, body + "}");
  }
  if (!choice.over) return;
  // Tokens behind the last text, a stop token say, are still to be told.
  std::string body = cat(R"({"index":)", index, R"(,"text":"","logprobs":)",
                         choice.logprobs && choice.logprobs->has_entries() ? choice.logprobs->take() : "null",
                         R"(,"finish_reason":")", choice.finish, R"(","stop_reason":)", choice.stop_reason);
  if (ask_.options.return_token_ids) body += cat(R"(,"token_ids":)", token_ids_json(std::exchange(choice.ids, {})));
  frame(text, body + "}");
}

void CompletionRun::take(size_t prompt, EngineOutput&& output, std::string& text) {
  const size_t index =
      prompt * static_cast<size_t>(ask_.options.num_candidates) + static_cast<size_t>(output.candidate);
  Choice& choice = choices_[index];
  std::string piece;
  if (ask_.echo && !echoed_[index]) {
    echoed_[index] = true;
    echo_prompt(choice, prompt, output, piece);
  }
  for (const TokenOutput& token : output.tokens) {
    if (choice.over) break;
    append(choice, token, piece);
    if (choice.over || !output.finish || &token != &output.tokens.back()) continue;
    const std::vector<TokenId>& ends = ask_.options.stop_token_ids;
    const bool is_asked = std::find(ends.begin(), ends.end(), token.token) != ends.end();
    if (*output.finish == EngineFinish::kStop && is_asked) choice.stop_reason = cat(token.token.value);
  }
  if (output.finish && !choice.over) end_choice(choice, *output.finish, piece);
  give(index, std::move(piece), text);
}

void CompletionRun::complete(std::string& text) {
  if (is_stream()) {
    if (ask_.options.include_usage) {
      frame(text, "", false);
      text.insert(text.rfind("}\n\n"), cat(R"(,"usage":)", usage_json(usage(), cache_json_)));
    }
    text += "data: [DONE]\n\n";
    return;
  }
  text = cat(R"({"id":")", id(), R"(","object":"text_completion","created":)", created(), R"(,"model":")",
             json_escaped(ask_.model), R"(","choices":[)");
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    text += cat(i > 0 ? "," : "", R"({"index":)", i, R"(,"text":")", json_escaped(choice.text), R"(","logprobs":)",
                choice.logprobs ? choice.logprobs->take() : "null", R"(,"finish_reason":")", choice.finish,
                R"(","stop_reason":)", choice.stop_reason);
    if (ask_.options.return_token_ids) {
      const size_t prompt = i / static_cast<size_t>(ask_.options.num_candidates);
      text += cat(R"(,"token_ids":)", token_ids_json(choice.ids), R"(,"prompt_token_ids":)",
                  token_ids_json(ask_.prompts[prompt]));
    }
    text += "}";
  }
  text += cat(R"(],"usage":)", usage_json(usage(), cache_json_), "}");
}

}  // namespace tandem

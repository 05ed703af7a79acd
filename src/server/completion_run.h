// server/completion_run.h: answers one /v1/completions request: text as it comes, without a chat format.
//
//   Choice i of prompt p is number p · n + i. An echoed prompt is the beginning of the text of each of its choices.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/generation_options.h"
#include "server/generation_run.h"
#include "server/legacy_logprobs.h"
#include "server/stop_matcher.h"
#include "server/usage.h"
#include "text/stream_decoder.h"

namespace tandem {

struct CompletionAsk {
  std::string model;
  std::string owner;
  GenerationOptions options;
  bool echo = false;
  std::vector<std::vector<TokenId>> prompts;
};

class CompletionRun : public GenerationRun {
 public:
  static std::shared_ptr<CompletionRun> create(std::shared_ptr<HttpExchange> exchange,
                                               std::shared_ptr<const ApiContext> context, CompletionAsk ask);

 protected:
  void begin() override;
  HttpHeaders headers() const override;
  void open_stream(std::string& text) override;
  void take(size_t prompt, EngineOutput&& output, std::string& text) override;
  bool is_over(size_t prompt, int64_t candidate) const override;
  void complete(std::string& text) override;

 private:
  struct Choice {
    Choice(const Tokenizer& tokenizer, const GenerationOptions& options)
        : decoder(tokenizer, options.skip_special_tokens), stops(options.stop, options.include_stop) {}
    StreamDecoder decoder;
    StopMatcher stops;
    std::optional<LegacyLogprobs> logprobs;
    std::string text;  // of a whole answer
    std::vector<TokenId> ids;
    int64_t num_tokens = 0;
    bool over = false;
    std::string finish;                // "stop" or "length"
    std::string stop_reason = "null";  // JSON: the stop string or token
  };

  CompletionRun(std::shared_ptr<HttpExchange> exchange, std::shared_ptr<const ApiContext> context, CompletionAsk ask);
  void append(Choice& choice, const TokenOutput& token, std::string& piece);
  void echo_prompt(Choice& choice, size_t prompt, const EngineOutput& output, std::string& piece);
  void end_choice(Choice& choice, EngineFinish finish, std::string& piece);
  void give(size_t index, std::string piece, std::string& text);
  void frame(std::string& text, std::string_view choice, bool may_have_usage = true) const;
  Usage usage() const;

  CompletionAsk ask_;
  std::vector<Choice> choices_;
  std::vector<bool> echoed_;
  std::string head_;
  std::string cache_json_;
};

}  // namespace tandem

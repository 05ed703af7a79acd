// server/chat_run.h: answers one /v1/chat/completions request, streamed or whole.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "server/chat_candidate.h"
#include "server/generation_run.h"
#include "server/usage.h"

namespace tandem {

struct ChatAsk {
  std::string model;  // as the client named it
  std::string owner;  // of the cache entries
  GenerationOptions options;
  ChatReading reading;
  ChatPrompt prompt;  // its ids go to the engine
};

class ChatRun : public GenerationRun {
 public:
  // kUnsupported: replies of this format cannot be read with this tokenizer.
  static Result<std::shared_ptr<ChatRun>> create(std::shared_ptr<HttpExchange> exchange,
                                                 std::shared_ptr<const ApiContext> context, ChatAsk ask);

 protected:
  void begin() override;
  HttpHeaders headers() const override;
  void open_stream(std::string& text) override;
  void take(size_t prompt, EngineOutput&& output, std::string& text) override;
  bool is_over(size_t prompt, int64_t candidate) const override;
  void complete(std::string& text) override;

 private:
  ChatRun(std::shared_ptr<HttpExchange> exchange, std::shared_ptr<const ApiContext> context, ChatAsk ask);
  bool wants_ids() const { return ask_.options.return_token_ids || ask_.options.internal_content; }
  // The channel opener is cached with a prompt but not counted in it (chat.md §5.3): never more than the prompt.
  int64_t reported_cached_tokens() const { return std::min(cached_tokens(), prompt_tokens_); }
  Usage usage() const;
  Usage usage_of(const ChatCandidate& candidate) const;
  void frame(std::string& text, std::string_view choice, bool may_have_usage = true) const;
  void delta_frame(std::string& text, size_t index, const ChatDelta& delta);
  void end_frame(std::string& text, size_t index);
  std::string delta_json(const ChatDelta& delta) const;
  std::string take_ids(size_t index);
  std::string message_json(const ChatReply& reply) const;

  ChatAsk ask_;
  CallIds call_ids_;
  int64_t prompt_tokens_;
  std::vector<ChatCandidate> candidates_;
  std::vector<std::vector<TokenId>> ids_;  // of each candidate: not sent yet, or all of a whole answer
  std::string head_;                       // of every frame
  std::string cache_json_;
};

// "[1,2,3]"
std::string token_ids_json(const std::vector<TokenId>& ids);

}  // namespace tandem

// apps/tandem/run_output.h: how `tandem run` shows what it generates.
#pragma once

#include <optional>
#include <string>

#include "engine/generate.h"
#include "text/reply_parser.h"
#include "text/stream_decoder.h"

namespace tandem::app {

// Streams plain text, control names spelled out, or token ids where there is no tokenizer; nothing with --json.
class RawPrinter {
 public:
  RawPrinter(const Tokenizer* tokenizer, bool json);
  void token(TokenId id);
  void finish();
  std::optional<std::string> text() const;  // none without a tokenizer

 private:
  void emit(const std::string& piece);

  std::optional<StreamDecoder> decoder_;
  std::string text_;
  bool json_;
  bool first_ = true;
};

// Streams a parsed reply: reasoning (dimmed on a terminal), then content and tool calls; nothing with --json.
class ChatPrinter {
 public:
  explicit ChatPrinter(bool json);
  void event(const ReplyEvent& event);
  void finish();

 private:
  bool json_;
  bool dim_;
  bool in_reasoning_ = false;
};

// A line on stderr; a second one where experts are streamed.
void print_stats(const GenerateResult& result, const ExpertStore* experts);

// The one JSON object of a run; `reply` is null outside a chat.
void print_json(const GenerateResult& result, const std::optional<std::string>& text, const ParsedReply* reply,
                const ExpertStore* experts);

}  // namespace tandem::app

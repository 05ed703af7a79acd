#include "text/reply_parser.h"

#include <utility>

#include "text/k2_reply_parser.h"
#include "text/reply_builder.h"
#include "text/reply_grammar.h"
#include "text/stream_decoder.h"
#include "text/xtml_reply_parser.h"

namespace tandem {

std::string_view reply_finish_name(ReplyFinish finish) {
  switch (finish) {
    case ReplyFinish::kStop: return "stop";
    case ReplyFinish::kLength: return "length";
    case ReplyFinish::kToolCalls: return "tool_calls";
  }
  return "stop";
}

struct ReplyParser::Impl {
  Impl(const Tokenizer& reply_tokenizer, const ReplyOptions& options)
      : tokenizer(reply_tokenizer),
        decoder(reply_tokenizer),
        builder(options.report_tool_calls, options.stream_tool_arguments) {}

  void give_text(const std::string& text) {
    if (!text.empty()) grammar->text(text);
  }

  const Tokenizer& tokenizer;
  StreamDecoder decoder;
  ReplyBuilder builder;  // the grammar refers to it
  std::unique_ptr<ReplyGrammar> grammar;
};

ReplyParser::ReplyParser(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ReplyParser::ReplyParser(ReplyParser&&) noexcept = default;
ReplyParser& ReplyParser::operator=(ReplyParser&&) noexcept = default;
ReplyParser::~ReplyParser() = default;

Result<ReplyParser> ReplyParser::create(const Tokenizer& tokenizer, ChatFormat format, const ReplyOptions& options) {
  auto impl = std::make_unique<Impl>(tokenizer, options);
  auto grammar = format == ChatFormat::kXtml ? create_xtml_reply_grammar(tokenizer, options, impl->builder)
                                             : create_k2_reply_grammar(tokenizer, options, impl->builder);
  if (!grammar.is_ok()) return grammar.status();
  impl->grammar = std::move(grammar).value();
  return ReplyParser(std::move(impl));
}

void ReplyParser::append(TokenId id, std::vector<ReplyEvent>& events) {
  Impl& impl = *impl_;
  if (impl.grammar->finished() || !impl.tokenizer.contains(id)) return;
  if (impl.tokenizer.is_control(id)) {
    impl.give_text(impl.decoder.flush());  // bytes on either side of a marker never form a character
    impl.grammar->control(id);
  } else {
    impl.give_text(impl.decoder.append(id));
  }
  impl.builder.take_events(events);
}

bool ReplyParser::finished() const { return impl_->grammar->finished(); }

ParsedReply ReplyParser::finish(ReplyStop stop, std::vector<ReplyEvent>& events) {
  Impl& impl = *impl_;
  if (impl.grammar->finished()) {
    stop = ReplyStop::kStopToken;
  } else {
    impl.give_text(impl.decoder.flush());
    impl.grammar->end(stop);
  }
  ParsedReply reply = impl.builder.finish(stop);
  impl.builder.take_events(events);
  return reply;
}

Message reply_message(const ParsedReply& reply) {
  Message message;
  message.role = Role::kAssistant;
  if (!is_blank_text(reply.reasoning)) message.reasoning = reply.reasoning;
  if (reply.content && !reply.content->empty()) message.content.emplace_back().text = *reply.content;
  for (const ParsedToolCall& call : reply.tool_calls) {
    message.tool_calls.push_back({call.id, call.name, JsonValue::string(call.arguments)});
  }
  return message;
}

}  // namespace tandem

// Any token ids as a model's reply, in both formats: never a crash; every event is valid UTF-8; the events, joined, are
// the final message; and calls reported as they come or once complete are the same calls.
//
//   Input: a byte of options, then tokens: 0..247 are bytes of text, 248 and above take the next byte as a control id,
//   or as one of a few whole tags that a random stream would hardly spell.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/cat.h"
#include "base/check.h"
#include "base/utf8.h"
#include "text/reply_parser.h"

namespace {

using namespace tandem;
using Kind = ReplyEvent::Kind;

std::string byte_ranks() {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (unsigned byte = 0; byte < 256; ++byte)
    out += cat(kDigits[byte >> 2], kDigits[(byte & 3) << 4], "== ", byte, "\n");
  return out;
}

constexpr std::string_view kNames[] = {"<|open|>",
                                       "<|close|>",
                                       "<|sep|>",
                                       "<|end_of_msg|>",
                                       "[EOS]",
                                       "<|im_end|>",
                                       "<|im_user|>",
                                       "<|im_middle|>",
                                       "<think>",
                                       "</think>",
                                       "<|tool_calls_section_begin|>",
                                       "<|tool_calls_section_end|>",
                                       "<|tool_call_begin|>",
                                       "<|tool_call_argument_begin|>",
                                       "<|tool_call_end|>",
                                       "[PAD]"};
constexpr std::string_view kScripts[] = {"<|open|>think<|sep|>",
                                         "<|close|>think<|sep|>",
                                         "<|open|>response<|sep|>",
                                         "<|close|>response<|sep|>",
                                         "<|open|>tools<|sep|>",
                                         "<|close|>tools<|sep|>",
                                         "<|open|>call tool=\"f\" index=\"1\"<|sep|>",
                                         "<|open|>call<|sep|>",
                                         "<|close|>call<|sep|>",
                                         "<|open|>argument key=\"k\" type=\"string\"<|sep|>",
                                         "<|open|>argument key=\"n&quot;\" type=\"number\"<|sep|>",
                                         "<|close|>argument<|sep|>",
                                         "<|open|>json type=\"object\"<|sep|>",
                                         "<|close|>json<|sep|>",
                                         "<|close|>message<|sep|>",
                                         "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0",
                                         "<|tool_call_begin|>call_abc<|tool_call_argument_begin|>"};

Tokenizer make_tokenizer() {
  std::string config = "{\"added_tokens_decoder\":{";
  for (size_t i = 0; i < std::size(kNames); ++i) {
    config += cat(i == 0 ? "" : ",", "\"", 256 + i, "\":{\"content\":\"", kNames[i], "\"}");
  }
  auto tokenizer = Tokenizer::from_memory(byte_ranks(), config + "}}", 256 + 32);
  TANDEM_CHECK(tokenizer.is_ok(), tokenizer.status().message());
  return std::move(tokenizer).value();
}

std::vector<TokenId> ids_of(const Tokenizer& tokenizer, const uint8_t* data, size_t size) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i < size; ++i) {
    if (data[i] < 248) {
      ids.emplace_back(data[i]);
    } else if (++i < size && data[i - 1] < 252) {
      ids.emplace_back(250 + data[i] % 48);  // a few bytes, the control ids and ids outside the vocabulary
    } else if (i < size) {
      tokenizer.encode_control_to(kScripts[data[i] % std::size(kScripts)], ids);
    }
  }
  return ids;
}

void check_law(const std::vector<ReplyEvent>& events, const ParsedReply& reply) {
  std::string reasoning;
  std::string content;
  std::vector<ParsedToolCall> calls;
  size_t num_ended = 0;
  for (const ReplyEvent& event : events) {
    TANDEM_CHECK(is_valid_utf8(event.text), "every event is UTF-8");
    if (event.kind == Kind::kReasoning) reasoning += event.text;
    if (event.kind == Kind::kContent) content += event.text;
    if (event.kind == Kind::kToolCallBegin) {
      TANDEM_CHECK(calls.size() == num_ended, "one call at a time");
      calls.push_back({event.call_id, event.text, ""});
    }
    if (event.kind == Kind::kToolArguments) calls.back().arguments += event.text;
    if (event.kind == Kind::kToolCallEnd) ++num_ended;
  }
  TANDEM_CHECK(events.back().kind == Kind::kFinished && events.back().finish == reply.finish, "one finish, at the end");
  calls.resize(num_ended);
  TANDEM_CHECK(calls == reply.tool_calls, "the calls of the events are those of the reply");
  TANDEM_CHECK(reasoning == reply.reasoning, "the reasoning too");
  TANDEM_CHECK(content == reply.content.value_or(""), "and the content");
  TANDEM_CHECK(reply.content || !calls.empty(), "no content only with calls");
}

ParsedReply read(const Tokenizer& tokenizer, ChatFormat format, const ReplyOptions& options, ReplyStop stop,
                 const std::vector<TokenId>& ids) {
  auto parser = ReplyParser::create(tokenizer, format, options);
  TANDEM_CHECK(parser.is_ok(), parser.status().message());
  std::vector<ReplyEvent> events;
  for (const TokenId id : ids) parser.value().append(id, events);
  ParsedReply reply = parser.value().finish(stop, events);
  check_law(events, reply);
  return reply;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer tokenizer = make_tokenizer();
  if (size == 0) return 0;
  const std::vector<TokenId> ids = ids_of(tokenizer, data + 1, size - 1);
  ReplyOptions options;
  options.start = (data[0] & 1) != 0 ? ReplyRegion::kThink : ReplyRegion::kResponse;
  options.report_tool_calls = (data[0] & 2) == 0;
  if ((data[0] & 4) != 0) options.tool_names = {"f"};
  const ReplyStop stop = (data[0] & 8) != 0 ? ReplyStop::kTokenLimit : ReplyStop::kStopToken;
  for (const ChatFormat format : {ChatFormat::kXtml, ChatFormat::kK2}) {
    options.stream_tool_arguments = false;
    const ParsedReply buffered = read(tokenizer, format, options, stop, ids);
    options.stream_tool_arguments = true;
    ParsedReply streamed = read(tokenizer, format, options, stop, ids);
    TANDEM_CHECK(streamed.tool_calls.size() == buffered.tool_calls.size(), "as many calls");
    if (format == ChatFormat::kXtml) streamed.tool_calls = buffered.tool_calls;  // a repeated key stands there twice
    TANDEM_CHECK(streamed == buffered, "streaming changes nothing else");
  }
  return 0;
}

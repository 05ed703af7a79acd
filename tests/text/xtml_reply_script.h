// tests/text/xtml_reply_script.h: replies of Kimi K3 written down as scripts, in which control names are control ids.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "text/reply_parser.h"
#include "text/reply_support.h"

namespace tandem::test {

inline constexpr ReplyStop kLimit = ReplyStop::kTokenLimit;
inline constexpr ReplyStop kStopped = ReplyStop::kStopToken;

inline ReplyOptions options_from(ReplyRegion start, bool streams = false) {
  ReplyOptions options;
  options.start = start;
  options.stream_tool_arguments = streams;
  return options;
}

// `script`: control names in it are control ids. Bytes as tokens; both ways of reporting calls are checked and agree.
inline ParsedReply parse(const std::string& script, ReplyRegion start, ReplyStop stop = kStopped) {
  static const Tokenizer tokenizer = named_tokenizer(single_bytes());
  const std::vector<TokenId> ids = tokenizer.encode_control(script);
  const ReplyRun buffered = run_reply(tokenizer, ChatFormat::kXtml, options_from(start), ids, stop);
  const ReplyRun streamed = run_reply(tokenizer, ChatFormat::kXtml, options_from(start, true), ids, stop);
  EXPECT_EQ(buffered.reply, streamed.reply) << script;
  return buffered.reply;
}
inline ParsedReply parse_thinking(const std::string& script, ReplyStop stop = kStopped) {
  return parse(script, ReplyRegion::kThink, stop);
}
inline ParsedReply parse_response(const std::string& script, ReplyStop stop = kStopped) {
  return parse(script, ReplyRegion::kResponse, stop);
}

inline std::string open(const std::string& header) { return "<|open|>" + header + "<|sep|>"; }
inline std::string close(const std::string& name) { return "<|close|>" + name + "<|sep|>"; }
inline const std::string kEnd = "<|end_of_msg|>";

// The reply up to inside the first call, and what a value is wrapped in.
inline std::string in_call(const std::string& body) {
  return close("response") + open("tools") + open("call tool=\"f\"") + body;
}
inline std::string argument(const std::string& key, const std::string& type, const std::string& value) {
  return open("argument key=\"" + key + "\" type=\"" + type + "\"") + value + close("argument");
}
inline std::string one_call(const std::string& body) {
  return in_call(body) + close("call") + close("tools") + close("message") + kEnd;
}
inline std::string arguments_of(const std::string& body) {
  const ParsedReply reply = parse_response(one_call(body));
  EXPECT_EQ(reply.tool_calls.size(), 1u);
  return reply.tool_calls.empty() ? "" : reply.tool_calls[0].arguments;
}

}  // namespace tandem::test

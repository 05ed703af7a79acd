// text/reply_parser.h: reading a model's reply, token by token, into reasoning, content and tool calls.
//
//   Only token ids decide structure: text that spells a marker is text. Markers never reach reasoning or content;
//   inside the value of an argument a control token that does not end it is kept, spelled out. Nothing a model writes
//   is an error. Any split of the same text into tokens gives the same reply, in O(n). Two formats: Kimi K3 (XTML,
//   xtml_reply_parser.h) and the Kimi K2 family (k2_reply_parser.h).
//
//   Law  the events' texts, joined, are the ParsedReply: reasoning, content, and the arguments of every call that has a
//        kToolCallEnd. A call without one was cut off and is not part of the reply (only with stream_tool_arguments).
//   Text of events and reply is valid UTF-8; no piece splits a character.
//   Threading: one parser reads one reply, on one thread. The tokenizer outlives it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "text/chat_format.h"
#include "text/chat_message.h"
#include "text/tokenizer.h"

namespace tandem {

// Where the prompt left off: inside an open think element, or inside the response.
enum class ReplyRegion { kThink, kResponse };

// Why no token follows: a stop token was drawn (whether or not the parser saw it), or the token limit was reached.
enum class ReplyStop { kStopToken, kTokenLimit };

enum class ReplyFinish { kStop, kLength, kToolCalls };
std::string_view reply_finish_name(ReplyFinish finish);  // "stop", "length", "tool_calls"

struct ReplyOptions {
  ReplyRegion start = ReplyRegion::kThink;
  // False when no tool is declared or tool_choice is none: calls are neither reported nor shown.
  bool report_tool_calls = true;
  // False: begin, the whole arguments and end of a call come together once it is complete. True: they come as they are
  // known. Then an argument key that occurs twice stands twice in the text, the last one being the one that counts;
  // otherwise it stands once.
  bool stream_tool_arguments = false;
  // Declared tools; the K2 format uses them where a call does not say its name.
  std::vector<std::string> tool_names;
};

struct ReplyEvent {
  enum class Kind {
    kReasoning,      // text
    kReasoningEnd,   // once, before the first content or call, when there was reasoning
    kContent,        // text
    kToolCallBegin,  // call_index, text = the tool's name, call_id
    kToolArguments,  // call_index, text = a piece of the arguments' JSON text
    kToolCallEnd,    // call_index
    kFinished,       // finish; the last event of every reply
  };
  Kind kind = Kind::kContent;
  std::string text;
  int64_t call_index = 0;              // 0, 1, 2… by appearance
  std::optional<std::string> call_id;  // K2: as the model wrote it; the K3 format has no ids
  ReplyFinish finish = ReplyFinish::kStop;
  bool operator==(const ReplyEvent&) const = default;
};

struct ParsedToolCall {
  std::optional<std::string> id;
  std::string name;
  std::string arguments;  // JSON text, unless the model wrote broken JSON; never blank
  bool operator==(const ParsedToolCall&) const = default;
};

struct ParsedReply {
  std::string reasoning;               // not trimmed; empty: none
  std::optional<std::string> content;  // not trimmed; nothing when there are calls and only white space
  std::vector<ParsedToolCall> tool_calls;
  bool has_unfinished_call = false;  // one was cut off and is not in tool_calls
  ReplyFinish finish = ReplyFinish::kStop;
  bool operator==(const ParsedReply&) const = default;
};

class ReplyParser {
 public:
  // kUnsupported names the control names that the tokenizer lacks and this format's replies need.
  static Result<ReplyParser> create(const Tokenizer& tokenizer, ChatFormat format, const ReplyOptions& options);

  ReplyParser(ReplyParser&&) noexcept;
  ReplyParser& operator=(ReplyParser&&) noexcept;
  ~ReplyParser();

  // Appends to `events` what `id` made certain. Ids outside the vocabulary and those behind the end token are ignored.
  void append(TokenId id, std::vector<ReplyEvent>& events);

  // The format's end token was seen: nothing can be added to the reply.
  bool finished() const;

  // Ends the reply; call it once. Appends the last events. `stop` does not matter when the end token was seen.
  ParsedReply finish(ReplyStop stop, std::vector<ReplyEvent>& events);

 private:
  struct Impl;
  explicit ReplyParser(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// The assistant turn of the next request's history. Arguments stay the text the model wrote; the XTML renderer refuses
// arguments that are JSON but no object.
Message reply_message(const ParsedReply& reply);

}  // namespace tandem

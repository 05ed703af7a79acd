// text/reply_builder.h: collects a reply and tells its events; what both formats share. Part of reply_parser.h.
//
//   Content that is only white space is held back: with tool calls it is no content at all.
//   Events of one kind that follow each other between two take_events() are one event.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/reply_parser.h"

namespace tandem {

// Only code points with the property White_Space; true for an empty text.
bool is_blank_text(std::string_view text);
std::string_view without_leading_space(std::string_view text);

class ReplyBuilder {
 public:
  ReplyBuilder(bool report_tool_calls, bool stream_tool_arguments)
      : reports_calls_(report_tool_calls), streams_arguments_(stream_tool_arguments) {}

  bool streams_arguments() const { return streams_arguments_; }
  bool reports_calls() const { return reports_calls_; }
  bool has_content() const { return has_content_ || !held_space_.empty(); }

  void reasoning(std::string_view text);
  void content(std::string_view text);

  // A call: begin, any number of arguments, then end or abandon.
  void begin_call(std::string name, std::optional<std::string> id);
  void arguments(std::string_view text);
  void end_call();      // blank arguments become {}
  void abandon_call();  // cut off: counts as unfinished
  void count_unfinished_call() { unfinished_ = unfinished_ || reports_calls_; }

  ParsedReply finish(ReplyStop stop);
  void take_events(std::vector<ReplyEvent>& events);

 private:
  void emit(ReplyEvent::Kind kind, std::string_view text);
  void end_reasoning();

  bool reports_calls_;
  bool streams_arguments_;
  bool has_content_ = false;  // a character that is no white space
  bool unfinished_ = false;
  bool reasoning_ended_ = false;
  std::string reasoning_;
  std::string content_;
  std::string held_space_;
  std::vector<ParsedToolCall> calls_;
  ParsedToolCall call_;  // between begin_call and end_call
  std::vector<ReplyEvent> events_;
};

}  // namespace tandem

// text/reply_arguments.h: the arguments of one K3 call as the JSON text of an OpenAI call. Part of reply_parser.h.
//
//   {"k": v, "k2": v2}. type string, or none: a JSON string of the raw text; another type: the text itself when it is
//   JSON (1e2 and long integers stay as written), else a JSON string of it. A json element is the whole arguments, as
//   raw text; the kind of the first element decides, elements of the other kind are left out, and so is an argument
//   without a key.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/reply_builder.h"

namespace tandem {

class ReplyArguments {
 public:
  explicit ReplyArguments(ReplyBuilder& builder) : builder_(builder), streams_(builder.streams_arguments()) {}

  void begin_call();
  void open_argument(const std::optional<std::string>& key, std::string_view type);
  void open_json();
  void value(std::string_view text);
  void close_value();
  void end_call();  // gives the builder what is still missing; the builder's end_call() is the caller's

 private:
  enum class Form { kNone, kObject, kRaw };
  enum class Value { kDropped, kString, kJson, kRaw };
  void write_member_head();

  ReplyBuilder& builder_;
  bool streams_;
  Form form_ = Form::kNone;
  Value value_ = Value::kDropped;
  std::string key_;
  std::string text_;  // of the open value: kJson, and kString unless streamed
  bool has_member_ = false;
  std::vector<std::pair<std::string, std::string>> members_;  // unless streamed: key, JSON of the value
  std::unordered_map<std::string, size_t> place_of_key_;
};

}  // namespace tandem

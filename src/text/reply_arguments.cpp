#include "text/reply_arguments.h"

#include "base/cat.h"
#include "text/reply_json.h"

namespace tandem {
namespace {

std::string quoted(std::string_view text) { return cat("\"", json_escaped(text), "\""); }

}  // namespace

void ReplyArguments::begin_call() {
  form_ = Form::kNone;
  has_member_ = false;
  members_.clear();
  place_of_key_.clear();
}

void ReplyArguments::write_member_head() {
  builder_.arguments(cat(has_member_ ? ", " : "{", quoted(key_), ": "));
  has_member_ = true;
}

void ReplyArguments::open_argument(const std::optional<std::string>& key, std::string_view type) {
  text_.clear();
  value_ = Value::kDropped;
  if (!key || form_ == Form::kRaw) return;
  form_ = Form::kObject;
  key_ = *key;
  value_ = type.empty() || type == "string" ? Value::kString : Value::kJson;
  if (streams_ && value_ == Value::kString) {
    write_member_head();
    builder_.arguments("\"");
  }
}

void ReplyArguments::open_json() {
  value_ = form_ == Form::kNone ? Value::kRaw : Value::kDropped;
  if (form_ == Form::kNone) form_ = Form::kRaw;
}

void ReplyArguments::value(std::string_view text) {
  switch (value_) {
    case Value::kDropped: break;
    case Value::kRaw: builder_.arguments(text); break;
    case Value::kJson: text_ += text; break;
    case Value::kString:
      if (streams_) {
        builder_.arguments(json_escaped(text));
      } else {
        text_ += text;
      }
      break;
  }
}

void ReplyArguments::close_value() {
  const Value kind = std::exchange(value_, Value::kDropped);
  if (kind == Value::kDropped || kind == Value::kRaw) return;
  if (streams_ && kind == Value::kString) {
    builder_.arguments("\"");
    return;
  }
  std::string json = kind == Value::kJson && is_json_text(text_) ? std::move(text_) : quoted(text_);
  if (streams_) {
    write_member_head();
    builder_.arguments(json);
    return;
  }
  const auto [place, is_new] = place_of_key_.try_emplace(key_, members_.size());
  if (is_new) {
    members_.emplace_back(key_, std::move(json));
  } else {
    members_[place->second].second = std::move(json);
  }
}

void ReplyArguments::end_call() {
  if (form_ != Form::kObject) return;  // raw text, or nothing, which the builder makes {}
  for (const auto& [key, json] : members_) {
    key_ = key;
    write_member_head();
    builder_.arguments(json);
  }
  builder_.arguments(has_member_ ? "}" : "{}");
}

}  // namespace tandem

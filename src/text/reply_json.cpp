#include "text/reply_json.h"

#include <cctype>

#include "base/cat.h"
#include "base/utf8.h"
#include "text/json_format.h"
#include "text/json_value.h"

namespace tandem {
namespace {

class JsonChecker {
 public:
  explicit JsonChecker(std::string_view text) : text_(text) {}

  bool check() {
    do {
      if (!enter_value()) return false;
      if (!leave_values()) return false;
    } while (!done_);
    return at_ == text_.size();
  }

 private:
  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  bool take(char c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool take_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  void skip_space() {
    while (!at_end() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }

  bool string();
  bool number();
  bool digits();
  bool key();
  bool enter_value();
  bool leave_values();

  std::string_view text_;
  size_t at_ = 0;
  std::string open_;   // the brackets around the current place
  bool done_ = false;  // the outermost value ended
};

bool JsonChecker::string() {
  if (!take('"')) return false;
  while (!at_end()) {
    const char c = text_[at_++];
    if (c == '"') return true;
    if (static_cast<unsigned char>(c) < 0x20) return false;
    if (c != '\\') continue;
    if (take('u')) {
      for (int i = 0; i < 4; ++i) {
        if (!std::isxdigit(static_cast<unsigned char>(peek()))) return false;
        ++at_;
      }
    } else if (at_end() || std::string_view("\"\\/bfnrt").find(text_[at_++]) == std::string_view::npos) {
      return false;
    }
  }
  return false;
}

bool JsonChecker::digits() {
  const size_t begin = at_;
  while (peek() >= '0' && peek() <= '9') ++at_;
  return at_ > begin;
}

bool JsonChecker::number() {
  take('-');
  if (!take('0') && !digits()) return false;
  if (take('.') && !digits()) return false;
  if (take('e') || take('E')) {
    if (!take('+')) take('-');
    return digits();
  }
  return true;
}

bool JsonChecker::key() {
  skip_space();
  if (!string()) return false;
  skip_space();
  return take(':');
}

// Reads up to the end of a scalar, or of an empty container, going down through the first members of containers.
bool JsonChecker::enter_value() {
  while (true) {
    skip_space();
    const char c = peek();
    if (c == '"') return string();
    if (c == 't') return take_word("true");
    if (c == 'f') return take_word("false");
    if (c == 'n') return take_word("null");
    if (c != '{' && c != '[') return number();
    ++at_;
    skip_space();
    if (take(c == '{' ? '}' : ']')) return true;
    open_.push_back(c);
    if (c == '{' && !key()) return false;
  }
}

// Behind a value: closes what ends here, up to the place of the next value or the end of the text.
bool JsonChecker::leave_values() {
  while (true) {
    skip_space();
    if (open_.empty()) {
      done_ = true;
      return true;
    }
    const bool in_object = open_.back() == '{';
    if (take(',')) return !in_object || key();
    if (!take(in_object ? '}' : ']')) return false;
    open_.pop_back();
  }
}

}  // namespace

bool is_json_text(std::string_view text) { return JsonChecker(text).check(); }

std::string json_escaped(std::string_view text) {
  std::string quoted = format_json_spaced(JsonValue::string(std::string(text)));
  return quoted.substr(1, quoted.size() - 2);
}

std::string piece_json(std::string_view bytes) {
  if (is_valid_utf8(bytes)) return cat('"', json_escaped(bytes), '"');
  std::string out = "[";
  for (const char c : bytes) out += cat(out.size() > 1 ? "," : "", static_cast<int>(static_cast<unsigned char>(c)));
  return out + "]";
}

}  // namespace tandem

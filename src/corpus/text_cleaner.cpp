#include "corpus/text_cleaner.h"

#include "base/utf8.h"

namespace tandem {
namespace {

enum class Meaning { kKeep, kNewline, kSpace, kBackspace, kControl, kInvisible };

Meaning meaning_of(uint32_t c) {
  if (c == '\n' || c == '\v' || c == '\f' || c == '\r' || c == 0x85 || c == 0x2028 || c == 0x2029) {
    return Meaning::kNewline;
  }
  if (c == '\b') return Meaning::kBackspace;
  if (c != '\t' && (c < 0x20 || (c >= 0x7F && c <= 0x9F))) return Meaning::kControl;
  if (c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x202F || c == 0x205F || c == 0x3000) {
    return Meaning::kSpace;
  }
  if (c == 0xFEFF || c == 0x200B || c == 0x2060 || c == 0xAD) return Meaning::kInvisible;
  return Meaning::kKeep;
}

// Removes the last code point of a line; `line` is valid UTF-8.
void remove_last(std::string& line) {
  while (!line.empty() && (static_cast<uint8_t>(line.back()) & 0xC0) == 0x80) line.pop_back();
  if (!line.empty()) line.pop_back();
}

std::string collapsed(std::string_view line) {
  std::string out;
  for (const char c : line) {
    const bool is_space = c == ' ' || c == '\t';
    if (!is_space) {
      out.push_back(c);
    } else if (!out.empty() && out.back() != ' ') {
      out.push_back(' ');
    }
  }
  return out;
}

// Collects lines into a document without trailing space and with one empty line in a row at most.
class LineWriter {
 public:
  explicit LineWriter(bool collapse_spaces) : collapse_spaces_(collapse_spaces) {}

  void end_line(std::string& line) {
    if (collapse_spaces_) line = collapsed(line);
    line.erase(line.find_last_not_of(" \t") + 1);
    if (line.empty()) {
      has_gap_ = true;
      return;
    }
    if (has_gap_ && !text_.empty()) text_ += '\n';
    has_gap_ = false;
    text_ += line;
    text_ += '\n';
    line.clear();
  }
  std::string take() { return std::move(text_); }

 private:
  bool collapse_spaces_;
  bool has_gap_ = false;
  std::string text_;
};

}  // namespace

std::optional<std::string> clean_text(std::string_view raw, const TextCleanerOptions& options,
                                      TextCleanerCounts& counts) {
  if (options.invalid_utf8 == InvalidUtf8::kRefuse && !is_valid_utf8(raw)) return std::nullopt;
  LineWriter writer(options.collapse_spaces);
  std::string line;
  while (!raw.empty()) {
    const Utf8Step step = decode_utf8(raw);
    if (!step.valid) {
      counts.invalid_bytes += step.size;
      raw.remove_prefix(step.size);
      continue;
    }
    const bool is_crlf = raw.starts_with("\r\n");
    switch (meaning_of(step.code_point)) {
      case Meaning::kKeep: line += raw.substr(0, step.size); break;
      case Meaning::kNewline: writer.end_line(line); break;
      case Meaning::kSpace: line += ' '; break;
      case Meaning::kBackspace: remove_last(line); [[fallthrough]];
      case Meaning::kControl:
      case Meaning::kInvisible: ++counts.control_characters; break;
    }
    raw.remove_prefix(is_crlf ? 2 : step.size);
  }
  writer.end_line(line);
  return writer.take();
}

}  // namespace tandem

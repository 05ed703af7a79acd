#include "text/pretokenizer.h"

#include "base/check.h"
#include "base/utf8.h"

namespace tandem {
namespace {

constexpr size_t kNoMatch = 0;

constexpr uint8_t kNotLead = kClassNewline | kClassLetter | kClassNumber;
constexpr uint8_t kNotSymbol = kClassSpace | kClassLetter | kClassNumber;

// The end of the optional contraction suffix that may start at `position`.
size_t suffix_end(std::string_view text, size_t position) {
  if (position + 1 >= text.size() || text[position] != '\'') return position;
  const auto lower = [&](size_t i) { return i < text.size() ? static_cast<char>(text[i] | 0x20) : '\0'; };
  // Setting bit 5 folds ASCII capitals only onto small letters here: the bytes that fold onto the letters below
  // are exactly their capitals.
  const char first = lower(position + 1);
  const char second = lower(position + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return position + 2;
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l')) {
    return position + 3;
  }
  return position;
}

}  // namespace

inline PreTokenizer::CodePoint PreTokenizer::at(std::string_view text, size_t position) const {
  if (position >= text.size()) return {0, 0};
  const auto byte = static_cast<uint8_t>(text[position]);
  if (byte < 0x80) return {classes_[byte], 1};
  const Utf8Step step = decode_utf8(text.substr(position));
  if (!step.valid) return {0, 1};
  return {classes_[step.code_point], step.size};
}

inline size_t PreTokenizer::run_end(std::string_view text, size_t position, uint8_t classes) const {
  for (CodePoint c = at(text, position); (c.classes & classes) != 0; c = at(text, position)) position += c.size;
  return position;
}

// U* L+ from `start`, or kNoMatch. U* takes all it can; when no L follows, it gives back to the last code point that is
// in L too (Lm, Lo, M), and behind that one the run has only capitals, so L+ is that single code point.
size_t PreTokenizer::cased_word_end(std::string_view text, size_t start) const {
  size_t position = start;
  size_t after_last_shared = kNoMatch;
  CodePoint c = at(text, position);
  for (; (c.classes & kClassUpper) != 0; c = at(text, position)) {
    position += c.size;
    if ((c.classes & kClassLower) != 0) after_last_shared = position;
  }
  if ((c.classes & kClassLower) != 0) return run_end(text, position, kClassLower);
  return after_last_shared;
}

// U+ L* from `start`, or kNoMatch.
size_t PreTokenizer::upper_word_end(std::string_view text, size_t start) const {
  const size_t position = run_end(text, start, kClassUpper);
  if (position == start) return kNoMatch;
  return run_end(text, position, kClassLower);
}

// Alternatives 2 and 3: with the optional lead code point first, then without it.
size_t PreTokenizer::word_end(std::string_view text) const {
  const CodePoint first = at(text, 0);
  const bool can_lead = (first.classes & kNotLead) == 0;
  const bool can_start = (first.classes & (kClassUpper | kClassLower)) != 0;
  size_t end = kNoMatch;
  if (can_lead) {
    const CodePoint second = at(text, first.size);
    if ((second.classes & (kClassUpper | kClassLower)) == 0) {
      if (!can_start) return kNoMatch;  // the common case of a lone symbol or space
    } else {
      end = cased_word_end(text, first.size);
    }
  }
  if (end == kNoMatch && can_start) end = cased_word_end(text, 0);
  if (end == kNoMatch && can_lead) end = upper_word_end(text, first.size);
  if (end == kNoMatch && can_start) end = upper_word_end(text, 0);
  return end == kNoMatch ? kNoMatch : suffix_end(text, end);
}

size_t PreTokenizer::numbers_end(std::string_view text) const {
  size_t position = 0;
  for (int i = 0; i < 3; ++i) {
    const CodePoint c = at(text, position);
    if ((c.classes & kClassNumber) == 0) break;
    position += c.size;
  }
  return position;
}

// Alternative 5.
size_t PreTokenizer::symbols_end(std::string_view text) const {
  const size_t start = text[0] == ' ' ? 1 : 0;
  size_t position = start;
  for (CodePoint c = at(text, position); c.size != 0 && (c.classes & kNotSymbol) == 0; c = at(text, position)) {
    position += c.size;
  }
  return position == start ? kNoMatch : run_end(text, position, kClassNewline);
}

// Alternatives 6 to 8; the first code point is a space.
size_t PreTokenizer::space_end(std::string_view text) const {
  size_t position = 0;
  size_t before_last = 0;
  size_t after_last_newline = kNoMatch;
  for (CodePoint c = at(text, 0); (c.classes & kClassSpace) != 0; c = at(text, position)) {
    before_last = position;
    position += c.size;
    if ((c.classes & kClassNewline) != 0) after_last_newline = position;
  }
  if (after_last_newline != kNoMatch) return after_last_newline;
  if (position == text.size() || before_last == 0) return position;
  return before_last;
}

size_t PreTokenizer::next_piece(std::string_view text) const {
  const CodePoint first = at(text, 0);
  if ((first.classes & kClassHan) != 0) return run_end(text, 0, kClassHan);
  if (const size_t end = word_end(text); end != kNoMatch) return end;
  if ((first.classes & kClassNumber) != 0) return numbers_end(text);
  if (const size_t end = symbols_end(text); end != kNoMatch) return end;
  TANDEM_CHECK((first.classes & kClassSpace) != 0, "a code point is Han, a word, a number, a symbol or a space");
  return space_end(text);
}

void PreTokenizer::split_guarded(std::string_view text, int64_t slice_length, int64_t run_length,
                                 FunctionRef<void(std::string_view)> substring) const {
  // A code point has a byte at least: a short text cannot meet a limit.
  if (static_cast<int64_t>(text.size()) <= run_length && static_cast<int64_t>(text.size()) <= slice_length) {
    if (!text.empty()) substring(text);
    return;
  }
  size_t start = 0;
  size_t position = 0;
  int64_t in_slice = 0;
  int64_t in_run = 0;
  bool run_is_space = false;
  while (position < text.size()) {
    const CodePoint c = at(text, position);
    const bool is_space = (c.classes & kClassSpace) != 0;
    const bool slice_is_full = in_slice == slice_length;
    in_run = is_space == run_is_space && !slice_is_full ? in_run + 1 : 1;
    if (slice_is_full || in_run > run_length) {
      if (position > start) substring(text.substr(start, position - start));
      start = position;
      in_run = 1;
    }
    in_slice = slice_is_full ? 1 : in_slice + 1;
    run_is_space = is_space;
    position += c.size;
  }
  substring(text.substr(start));
}

void PreTokenizer::for_each_piece(std::string_view text, FunctionRef<void(std::string_view)> piece) const {
  split_guarded(text, kGuardSliceLength, kGuardRunLength, [&](std::string_view rest) {
    while (!rest.empty()) {
      const size_t size = next_piece(rest);
      piece(rest.substr(0, size));
      rest.remove_prefix(size);
    }
  });
}

}  // namespace tandem

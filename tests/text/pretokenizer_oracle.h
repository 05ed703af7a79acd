// tests/text/pretokenizer_oracle.h: the pre-tokenizer as a PCRE2 pattern, and the length guard on code points.
#pragma once

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "text/unicode_classes.h"

namespace tandem::test {

// A compiled UTF pattern; matching starts where told and is anchored there.
class Pattern {
 public:
  explicit Pattern(const std::string& source) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, nullptr);
    if (code_ == nullptr) throw std::runtime_error("pattern " + source);
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);
    match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
    context_ = pcre2_match_context_create(nullptr);
    stack_ = pcre2_jit_stack_create(1 << 16, 64 << 20, nullptr);
    pcre2_jit_stack_assign(context_, nullptr, stack_);
  }
  ~Pattern() {
    pcre2_jit_stack_free(stack_);
    pcre2_match_context_free(context_);
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  // The end of the match at `start`; npos: none. `text` is valid UTF-8.
  size_t match(std::string_view text, size_t start) const {
    const int result = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start,
                                   PCRE2_NO_UTF_CHECK, match_, context_);
    if (result == PCRE2_ERROR_NOMATCH) return std::string_view::npos;
    if (result < 0) throw std::runtime_error("pcre2_match failed");
    return pcre2_get_ovector_pointer(match_)[1];
  }

 private:
  pcre2_code* code_ = nullptr;
  pcre2_match_data* match_ = nullptr;
  pcre2_match_context* context_ = nullptr;
  pcre2_jit_stack* stack_ = nullptr;
};

inline const std::string kSpaceSet =
    R"(\x{09}-\x{0D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
inline const std::string kHanPattern = R"(\p{sc:Han})";  // a plain \p{Han} means script extensions
inline const std::string kUpperPattern = R"((?:(?!\p{sc:Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]))";
inline const std::string kLowerPattern = R"((?:(?!\p{sc:Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}]))";

inline std::string pre_tokenizer_pattern() {
  const std::string suffix = R"((?:'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL]))?)";
  const std::string lead = R"([^\r\n\p{L}\p{N}]?)";
  return kHanPattern + "+|" + lead + kUpperPattern + "*" + kLowerPattern + "+" + suffix + "|" + lead + kUpperPattern +
         "+" + kLowerPattern + "*" + suffix + R"(|\p{N}{1,3}| ?[^)" + kSpaceSet + R"(\p{L}\p{N}]+[\r\n]*|[)" +
         kSpaceSet + R"(]*[\r\n]+|[)" + kSpaceSet + "]+(?![^" + kSpaceSet + "])|[" + kSpaceSet + "]+";
}

inline std::vector<std::string> oracle_pieces(const Pattern& pattern, std::string_view text) {
  std::vector<std::string> pieces;
  for (size_t at = 0; at < text.size();) {
    const size_t end = pattern.match(text, at);
    if (end == std::string_view::npos || end == at) throw std::runtime_error("the pattern covers every text");
    pieces.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return pieces;
}

// The length guard as the reference writes it, over a list of code points.
inline std::vector<std::string> oracle_guard(std::string_view text, size_t slice_length, size_t run_length) {
  std::vector<uint32_t> code_points;
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = decode_utf8(text.substr(i));
    code_points.push_back(step.code_point);
    i += step.size;
  }
  std::vector<std::string> substrings;
  for (size_t slice = 0; slice < code_points.size(); slice += slice_length) {
    const size_t slice_end = std::min(slice + slice_length, code_points.size());
    bool is_space = is_white_space(code_points[slice]);
    size_t length = 0;
    std::string current;
    for (size_t i = slice; i < slice_end; ++i) {
      if (is_white_space(code_points[i]) != is_space) {
        is_space = !is_space;
        length = 1;
      } else if (++length > run_length) {
        substrings.push_back(std::move(current));
        current.clear();
        length = 1;
      }
      append_utf8(current, code_points[i]);
    }
    substrings.push_back(std::move(current));
  }
  return substrings;
}

}  // namespace tandem::test

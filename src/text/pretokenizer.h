// text/pretokenizer.h: cuts text into the pieces that BPE works on, by the pattern of the Kimi tokenizer.
//
//   The pattern's alternatives in order, over code points (chat.md §1.3 of the specification; tokenization_kimi.py):
//     1  Han+
//     2  [not CR LF L N]? U*  L+ suffix       suffix: optional 's 't 're 've 'm 'll 'd, any ASCII case
//     3  [not CR LF L N]? U+  L* suffix
//     4  N{1,3}
//     5  U+0020? [not s L N]+ [CR LF]*
//     6  s* [CR LF]+
//     7  s+ not followed by a non-space
//     8  s+
//   The matcher is written by hand: every alternative is decided from the ends of a few runs of one class, so a piece
//   costs time in its own length and no text is quadratic. A byte that is not UTF-8 is a code point of no class.
//   Immutable: any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/function_ref.h"
#include "text/unicode_classes.h"

namespace tandem {

// The length guard's limits, in code points: slices first, then runs of space or of non-space inside a slice.
inline constexpr int64_t kGuardSliceLength = 400000;
inline constexpr int64_t kGuardRunLength = 25000;

class PreTokenizer {
 public:
  // Size in bytes of the first piece of `text`, which is not empty. `text` is all there is: an end of text is an end.
  size_t next_piece(std::string_view text) const;

  // The length guard: calls `substring` for the parts of `text` that are pre-tokenized on their own, in order.
  void split_guarded(std::string_view text, int64_t slice_length, int64_t run_length,
                     FunctionRef<void(std::string_view)> substring) const;

  // Guard, then pieces: what the tokenizer does.
  void for_each_piece(std::string_view text, FunctionRef<void(std::string_view)> piece) const;

 private:
  struct CodePoint {
    uint8_t classes;
    uint32_t size;
  };
  CodePoint at(std::string_view text, size_t position) const;  // size 0 at the end
  size_t run_end(std::string_view text, size_t position, uint8_t classes) const;
  size_t cased_word_end(std::string_view text, size_t start) const;
  size_t upper_word_end(std::string_view text, size_t start) const;
  size_t word_end(std::string_view text) const;
  size_t symbols_end(std::string_view text) const;
  size_t space_end(std::string_view text) const;
  size_t numbers_end(std::string_view text) const;

  UnicodeClasses classes_;
};

}  // namespace tandem

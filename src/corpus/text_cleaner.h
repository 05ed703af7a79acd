// corpus/text_cleaner.h: one document as it came → text fit to train on.
//
//   Encoding     A document that is not UTF-8 is refused, or its bad bytes are left out (InvalidUtf8).
//   Line ends    CR LF, CR, form feed, vertical tab, U+0085, U+2028 and U+2029 become LF.
//   Overstrike   c BACKSPACE d, as in formatted manuals, becomes d.
//   Left out     all other control characters but TAB and LF (U+0000..001F, U+007F..009F), the byte order mark, zero
//                width space, word joiner and soft hyphen; white space at the end of a line; empty lines at both ends
//                of the document; more than one empty line in a row.
//   Spaces       U+00A0, U+1680, U+2000..200A, U+202F, U+205F and U+3000 become U+0020. Indentation and runs of spaces
//                inside a line stay (they are meaning in code and tables), unless collapse_spaces is set: then a run of
//                spaces and tabs becomes one space and a line has no indentation.
//   Nothing else changes: no case folding, no normalisation form. Cleaning is idempotent. Stateless: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tandem {

enum class InvalidUtf8 { kRefuse, kDropBytes };

struct TextCleanerOptions {
  InvalidUtf8 invalid_utf8 = InvalidUtf8::kRefuse;
  bool collapse_spaces = false;
};

struct TextCleanerCounts {
  int64_t invalid_bytes = 0;
  int64_t control_characters = 0;  // left out, the ones of an overstrike included
};

// Nothing for a document that is refused. Ends in LF unless it is empty. Adds to `counts`.
std::optional<std::string> clean_text(std::string_view raw, const TextCleanerOptions& options,
                                      TextCleanerCounts& counts);

}  // namespace tandem

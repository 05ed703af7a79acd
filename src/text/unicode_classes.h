// text/unicode_classes.h: the code point classes that the pre-tokenizer's pattern is written in.
//
//   Unicode version 15.0, from ICU 72.1 through tools/make_unicode_classes.cpp. The table is part of the source so that
//   token ids do not depend on the version of a library on the user's machine; tests compare it with PCRE2 (Unicode
//   14.0) at every code point assigned there. Immutable after construction: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace tandem {

inline constexpr const char* kUnicodeVersion = "15.0";

// Bits of a class. U* and L* of the pattern exclude Han; both contain Lm, Lo and the marks.
inline constexpr uint8_t kClassHan = 1;       // Script = Han (not Script_Extensions)
inline constexpr uint8_t kClassUpper = 2;     // U* = Lu Lt Lm Lo M, not Han
inline constexpr uint8_t kClassLower = 4;     // L* = Ll Lm Lo M, not Han
inline constexpr uint8_t kClassLetter = 8;    // L, Han letters included
inline constexpr uint8_t kClassNumber = 16;   // N, Han numbers included
inline constexpr uint8_t kClassSpace = 32;    // White_Space: is_white_space()
inline constexpr uint8_t kClassNewline = 64;  // CR, LF: also in kClassSpace

// White_Space of the Unicode database.
constexpr bool is_white_space(uint32_t code_point) {
  return (code_point >= 0x09 && code_point <= 0x0D) || code_point == 0x20 || code_point == 0x85 || code_point == 0xA0 ||
         code_point == 0x1680 || (code_point >= 0x2000 && code_point <= 0x200A) || code_point == 0x2028 ||
         code_point == 0x2029 || code_point == 0x202F || code_point == 0x205F || code_point == 0x3000;
}

// Code points from `first` up to the next entry's first have these class bits. Ascending; starts at 0.
struct UnicodeClassRange {
  uint32_t first;
  uint8_t classes;
};
std::span<const UnicodeClassRange> unicode_class_ranges();

// The ranges spread out to one byte a code point.
class UnicodeClasses {
 public:
  static constexpr uint32_t kNumCodePoints = 0x110000;

  UnicodeClasses();
  uint8_t operator[](uint32_t code_point) const { return table_[code_point]; }  // code_point < kNumCodePoints

 private:
  std::unique_ptr<uint8_t[]> table_;
};

}  // namespace tandem

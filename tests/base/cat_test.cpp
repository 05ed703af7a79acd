#include "base/cat.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace tandem {
namespace {

TEST(Cat, JoinsTextNumbersAndCharacters) {
  const char* pointer = "pointer";
  const std::string owned = "owned";
  EXPECT_EQ(cat("literal ", pointer, ' ', owned, ' ', std::string_view("view"), ": ", 42, ", ", -7L, ", ", 0.5),
            "literal pointer owned view: 42, -7, 0.5");
  EXPECT_EQ(cat(), "");
}

TEST(Cat, AStringLiteralIsNotABool) { EXPECT_EQ(cat("yes", true, false), "yestruefalse"); }

TEST(Cat, IntegersOfEveryWidth) {
  EXPECT_EQ(cat(std::numeric_limits<int64_t>::min()), "-9223372036854775808");
  EXPECT_EQ(cat(std::numeric_limits<uint64_t>::max()), "18446744073709551615");
  EXPECT_EQ(cat(uint8_t{65}, ' ', int8_t{-1}), "65 -1");  // bytes are numbers, char is a character
}

TEST(Cat, FloatingPointIsShortestAndNonFiniteIsNamed) {
  EXPECT_EQ(cat(0.1f, ' ', 0.1, ' ', 1e300), "0.1 0.1 1e+300");
  EXPECT_EQ(cat(std::numeric_limits<double>::denorm_min()), "5e-324");
  EXPECT_EQ(cat(NAN, ' ', INFINITY, ' ', -INFINITY), "nan inf -inf");
}

TEST(Cat, KeepsEmbeddedNulAndInvalidUtf8) {
  using namespace std::string_literals;
  EXPECT_EQ(cat("a\0b"s, '\xff'), "a\0b\xff"s);
}

}  // namespace
}  // namespace tandem

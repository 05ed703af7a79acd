#include "text/json_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <charconv>
#include <cstring>

#include "text_fixtures.h"

namespace tandem::test {
namespace {

TEST(JsonFormat, PythonFloats) {
  // Values and texts as CPython's repr gives them.
  const std::pair<double, const char*> cases[] = {{0.0, "0.0"},
                                                  {-0.0, "-0.0"},
                                                  {1.0, "1.0"},
                                                  {1.5, "1.5"},
                                                  {-2.25, "-2.25"},
                                                  {1000.0, "1000.0"},
                                                  {0.1, "0.1"},
                                                  {0.0001, "0.0001"},
                                                  {0.00012, "0.00012"},
                                                  {0.00001, "1e-05"},
                                                  {1.5e-7, "1.5e-07"},
                                                  {1e15, "1000000000000000.0"},
                                                  {9999999999999998.0, "9999999999999998.0"},
                                                  {1e16, "1e+16"},
                                                  {1.2345e16, "1.2345e+16"},
                                                  {123456789012345680.0, "1.2345678901234568e+17"},
                                                  {1e22, "1e+22"},
                                                  {1e100, "1e+100"},
                                                  {5e-324, "5e-324"},
                                                  {1.7976931348623157e308, "1.7976931348623157e+308"},
                                                  {0.30000000000000004, "0.30000000000000004"},
                                                  {100.25, "100.25"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(python_float(value), text);
}

TEST(JsonFormat, FloatsRoundTrip) {
  Random random(3);
  for (int round = 0; round < 100000; ++round) {
    const uint64_t bits = uint64_t{random()} << 32 | random();
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    if (!(value - value == 0)) continue;  // infinity or NaN
    const std::string text = python_float(value);
    double back = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), back);
    ASSERT_TRUE(error == std::errc{} && end == text.data() + text.size()) << text;
    ASSERT_EQ(std::memcmp(&back, &value, sizeof value), 0) << text;
  }
}

TEST(JsonFormat, SortedAndSpaced) {
  const auto value = parse_json(
      R"( {"b" : [1 , {"z":null,"a":true}], "é":"/\u007f\u0001\b\f\n\r\t\"\\", "Z":{}, "a":1.50, "\ud83d\ude00":0, "\uffee":0} )",
      "test");
  ASSERT_TRUE(value.is_ok()) << value.status().message();
  // U+1F600 sorts after U+FFEE: code point order, not that of UTF-16.
  EXPECT_EQ(format_json_sorted(value.value()),
            "{\"Z\":{},\"a\":1.5,\"b\":[1,{\"a\":true,\"z\":null}],\"é\":\"/"
            "\x7F\\u0001\\b\\f\\n\\r\\t\\\"\\\\\",\"\uFFEE\":0,"
            "\"\U0001F600\":0}");
  EXPECT_EQ(
      format_json_spaced(value.value()),
      "{\"b\": [1, {\"z\": null, \"a\": true}], \"é\": \"/\x7F\\u0001\\b\\f\\n\\r\\t\\\"\\\\\", \"Z\": {}, \"a\": 1.5, "
      "\"\U0001F600\": 0, \"\uFFEE\": 0}");
}

TEST(JsonValue, NumbersKeysAndRefusals) {
  const auto spaced = [](std::string_view text) {
    const auto value = parse_json(text, "test");
    return value.is_ok() ? format_json_spaced(value.value()) : value.status().message();
  };
  EXPECT_EQ(spaced("-123456789012345678901234567890"), "-123456789012345678901234567890");
  EXPECT_EQ(spaced("[18446744073709551615, -9223372036854775808, -0, 1E2]"),
            "[18446744073709551615, -9223372036854775808, 0, 100.0]");
  EXPECT_EQ(spaced(R"({"a":1,"b":2,"a":{"c":1},"b":3,"d":4})"), R"({"a": {"c": 1}, "b": 3, "d": 4})");
  for (const std::string_view bad :
       {"", "{", "[1,]", "01", "1e999", "NaN", "\"\xFF\"", "\"\n\"", "nul", "1 2", "{\"a\" 1}"}) {
    EXPECT_THAT(spaced(bad), ::testing::StartsWith("test: expected JSON, byte ")) << bad;
  }
  EXPECT_EQ(spaced(std::string(128, '[') + std::string(128, ']')), std::string(128, '[') + std::string(128, ']'));
  EXPECT_THAT(spaced(std::string(129, '[') + std::string(129, ']')), ::testing::HasSubstr("128 nested levels"));
}

}  // namespace
}  // namespace tandem::test

// The front of one safetensors file: what is accepted, and the message of every refusal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "base/cat.h"
#include "weights/mapped_file.h"
#include "weights/raw_checkpoint.h"
#include "weights/safetensors_header.h"
#include "weights/tensor_table.h"

namespace tandem {
namespace {

using test::entry;
using test::object;
using ::testing::HasSubstr;
using ::testing::Not;

struct Parsed {
  TensorTable table;
  FaultList faults;
  std::string message() const { return faults.to_status("F").message(); }
};

Parsed parse(const std::string& json, uint64_t data_bytes) {
  Parsed parsed;
  const std::string padded = json + std::string(MappedFile::kPadding, '\0');
  const HeaderPlace place{"F", 7, data_bytes};
  parse_safetensors_header(std::as_bytes(std::span(padded)).first(json.size()), place, parsed.table, parsed.faults);
  parsed.table.sort_by_name();
  return parsed;
}

TEST(SafetensorsHeader, ReadsNamesTypesShapesAndPlaces) {
  const Parsed parsed = parse(object({entry("b", "BF16", "[2,3]", 4, 16), entry("a", "F32", "[]", 0, 4),
                                      entry("empty", "U8", "[0,5]", 16, 16), "\"__metadata__\":{\"format\":\"pt\"}"}) +
                                  "   ",
                              16);
  ASSERT_TRUE(parsed.faults.empty()) << parsed.message();
  ASSERT_EQ(parsed.table.size(), 3);
  const TensorEntry a = parsed.table.entry(0);
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.dtype, DType::kF32);
  EXPECT_TRUE(a.shape.empty());
  EXPECT_EQ(a.num_bytes, 4u);
  const TensorEntry b = parsed.table.entry(1);
  EXPECT_EQ(std::vector<int64_t>(b.shape.begin(), b.shape.end()), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(b.begin, 4u);
  EXPECT_EQ(b.num_bytes, 12u);
  EXPECT_EQ(b.shard, 7u);
  EXPECT_EQ(parsed.table.entry(2).num_bytes, 0u);
}

TEST(SafetensorsHeader, AcceptsAnEmptyObjectAndEscapedNames) {
  EXPECT_TRUE(parse("{}", 0).faults.empty());
  const Parsed parsed = parse(object({entry("t\\u0041\\\"x", "U8", "[1]", 0, 1)}), 1);
  ASSERT_TRUE(parsed.faults.empty()) << parsed.message();
  EXPECT_EQ(parsed.table.name(0), "tA\"x");
}

TEST(SafetensorsHeader, AcceptsUnknownFields) {
  const Parsed parsed =
      parse(R"({"t":{"extra":[1,{"x":null}],"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":"y"}})", 1);
  EXPECT_TRUE(parsed.faults.empty()) << parsed.message();
}

TEST(SafetensorsHeader, LargeOffsetsHave64Bits) {
  const uint64_t bytes = uint64_t{6} << 32;
  const Parsed parsed = parse(
      object({entry("t", "U8", "[6,4294967296]", 0, bytes), entry("u", "U8", "[1]", bytes, bytes + 1)}), bytes + 1);
  ASSERT_TRUE(parsed.faults.empty()) << parsed.message();
  EXPECT_EQ(parsed.table.entry(0).num_bytes, bytes);
  EXPECT_EQ(parsed.table.entry(1).begin, bytes);
}

struct FaultCase {
  const char* what;
  std::string json;
  uint64_t data_bytes;
  const char* message;
};

TEST(SafetensorsHeader, RefusesEveryFaultByName) {
  const std::vector<FaultCase> cases = {
      {"empty header", "", 0, "F: the header must begin with '{'"},
      {"leading space", " {}", 0, "F: the header must begin with '{'"},
      {"array", "[1]", 0, "F: the header must begin with '{'"},
      {"cut JSON", R"({"t":{"dtype":"U8")", 0, "F: the header is not valid JSON"},
      {"trailing text", "{} {}", 0, "F: the header is not valid JSON"},
      {"not UTF-8", "{\"\xff\":{}}", 0, "F: the header is not valid JSON"},
      {"control character", "{\"a\nb\":{}}", 0, "F: the header is not valid JSON"},
      {"entry of another type", R"({"t":3})", 0, "F: the header is not valid JSON"},
      {"metadata of another type", R"({"__metadata__":{"a":1}})", 0, "F: the header is not valid JSON"},
      {"negative extent", object({entry("t", "U8", "[-1]", 0, 1)}), 1, "F: the header is not valid JSON"},
      {"fractional extent", object({entry("t", "U8", "[1.5]", 0, 1)}), 1, "F: the header is not valid JSON"},
      {"no dtype", R"({"t":{"shape":[1],"data_offsets":[0,1]}})", 1, "F: t has no dtype"},
      {"no shape", R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1, "F: t has no shape"},
      {"no offsets", R"({"t":{"dtype":"U8","shape":[1]}})", 1, "F: t needs two data_offsets, found 0"},
      {"three offsets", R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1,
       "F: t needs two data_offsets, found 3"},
      {"dtype twice", R"({"t":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1,
       "F: t has the duplicate key dtype"},
      {"unknown dtype", object({entry("t", "F33", "[1]", 0, 4)}), 4, "F: t has the unknown dtype \"F33\""},
      {"too few bytes", object({entry("t", "F32", "[2,3]", 0, 20)}), 20,
       "F: t F32 [2, 3] needs 24 bytes, its data_offsets span 20"},
      {"overflow", object({entry("t", "F32", "[4294967296,4294967296]", 0, 0)}), 0,
       "F: t of shape [4294967296, 4294967296] exceeds 2^63 bytes"},
      {"begin behind end", object({entry("t", "U8", "[1]", 5, 4)}), 8, "F: t begins at byte 5 and ends before, at 4"},
      {"behind the data", object({entry("t", "U8", "[9]", 0, 9)}), 8,
       "F: t ends at byte 9 of a data section of 8 bytes"},
      {"overlap", object({entry("t", "U8", "[4]", 0, 4), entry("u", "U8", "[4]", 3, 7)}), 7,
       "F: u begins at byte 3 of the data section and overlaps the tensor that ends at 4"},
      {"inside another", object({entry("t", "U8", "[8]", 0, 8), entry("u", "U8", "[2]", 3, 5)}), 8,
       "F: u begins at byte 3 of the data section and overlaps"},
      {"hole", object({entry("t", "U8", "[4]", 0, 4), entry("u", "U8", "[4]", 6, 10)}), 10,
       "F: bytes 4 to 6 before u belong to no tensor"},
      {"hole at the front", object({entry("t", "U8", "[4]", 2, 6)}), 6, "F: bytes 0 to 2 before t belong to no tensor"},
      {"trailing bytes", object({entry("t", "U8", "[4]", 0, 4)}), 9,
       "F: 5 trailing bytes: the tensors end at 4, the data section has 9"},
      {"metadata twice", R"({"__metadata__":{},"__metadata__":{}})", 0, "F: duplicate key __metadata__"},
  };
  for (const FaultCase& c : cases) {
    SCOPED_TRACE(c.what);
    const Parsed parsed = parse(c.json, c.data_bytes);
    EXPECT_FALSE(parsed.faults.empty());
    EXPECT_THAT(parsed.message(), HasSubstr(c.message));
  }
}

TEST(SafetensorsHeader, ReportsSeveralFaultsAtOnce) {
  const Parsed parsed = parse(object({entry("a", "F33", "[1]", 0, 4), entry("b", "F32", "[2]", 4, 8),
                                      entry("c", "U8", "[4]", 6, 10), entry("d", "U8", "[99]", 10, 109)}),
                              12);
  EXPECT_EQ(parsed.faults.count(), 4) << parsed.message();
  EXPECT_THAT(parsed.message(), HasSubstr("a has the unknown dtype"));
  EXPECT_THAT(parsed.message(), HasSubstr("b F32 [2] needs 8 bytes"));
  EXPECT_THAT(parsed.message(), HasSubstr("c begins at byte 6"));
  EXPECT_THAT(parsed.message(), HasSubstr("d ends at byte 109"));
}

TEST(SafetensorsHeader, LongListsAreCutAndCounted) {
  FaultList faults;
  for (size_t i = 0; i < FaultList::kMaxListed + 10; ++i) faults.add("fault ", i, ';');
  const std::string message = faults.to_status("model").message();
  EXPECT_THAT(message, HasSubstr(cat("model: ", FaultList::kMaxListed + 10, " faults:")));
  EXPECT_THAT(message, HasSubstr(cat("fault ", FaultList::kMaxListed - 1, ';')));
  EXPECT_THAT(message, Not(HasSubstr(cat("fault ", FaultList::kMaxListed, ';'))));
  EXPECT_THAT(message, HasSubstr("… and 10 more"));
}

TEST(SafetensorsHeader, LengthIsCheckedAgainstTheFile) {
  const auto length_of = [](const std::string& bytes, uint64_t file_bytes, std::string& message) {
    FaultList faults;
    const auto length = read_header_length(std::as_bytes(std::span(bytes)), file_bytes, "F", faults);
    message = faults.to_status("x").message();
    return length;
  };
  std::string message;
  EXPECT_EQ(length_of(test::length_prefix(0x0102), 1000, message), 0x0102u);
  EXPECT_EQ(length_of(test::length_prefix(992), 1000, message), 992u);
  EXPECT_FALSE(length_of(test::length_prefix(993), 1000, message));
  EXPECT_THAT(message, HasSubstr("F: truncated: the header states 993 bytes, the file has 992"));
  EXPECT_FALSE(length_of("1234567", 7, message));
  EXPECT_THAT(message, HasSubstr("F: truncated: a safetensors file has at least 8 bytes, found 7"));
  EXPECT_FALSE(length_of(std::string(8, '\xff'), 1000, message));
  EXPECT_THAT(message, HasSubstr("the header states 18446744073709551615 bytes, at most 100000000"));
}

TEST(TensorTable, SortsAndFindsNamesThatShareLongPrefixes) {
  TensorTable table;
  std::vector<std::string> names;
  const std::string prefix = "language_model.model.layers.1.block_sparse_moe.experts.";
  for (int i = 999; i >= 0; --i) {
    names.push_back(cat(prefix, i, ".w1.weight_packed"));
    names.push_back(cat(prefix, i));
  }
  names.push_back("");
  names.push_back(std::string("zero\0", 5));
  names.push_back("zero");
  names.push_back(std::string("zero\0\0\0\0\0\0\0\0\0", 13));
  const int64_t shape[] = {3};
  for (const std::string& name : names) table.add(name, DType::kU8, shape, 0, 0);
  table.sort_by_name();
  std::ranges::sort(names);
  ASSERT_EQ(table.size(), static_cast<int64_t>(names.size()));
  for (int64_t i = 0; i < table.size(); ++i) {
    ASSERT_EQ(table.name(i), names[static_cast<size_t>(i)]);
    ASSERT_EQ(table.find(names[static_cast<size_t>(i)]), i);
  }
  EXPECT_FALSE(table.find(prefix));
  EXPECT_FALSE(table.find("zzz"));
}

}  // namespace
}  // namespace tandem

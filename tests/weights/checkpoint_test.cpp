// Checkpoint folders: what opens, and one refusal that names every fault. Field report 70 (memory of a large index) is
// bounded here and measured in bench/index_bench.cpp.
#include "weights/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/cat.h"
#include "support/golden.h"
#include "weights/raw_checkpoint.h"

namespace tandem {
namespace {

using test::entry;
using test::object;
using test::safetensors_bytes;
using test::TempFolder;
using test::write_raw;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kIndex = "model.safetensors.index.json";

std::string refusal(const std::string& dir, Checkpoint::Mode mode = Checkpoint::Mode::kMap) {
  const auto opened = Checkpoint::open(dir, mode);
  EXPECT_FALSE(opened.is_ok());
  return opened.is_ok() ? "" : opened.status().message();
}

// Two shards: A holds a (4 bytes) and b (2), B holds c (8). Each test spoils one thing.
struct TwoShards {
  TempFolder dir;
  std::string header_a = object({entry("a", "F32", "[1]", 0, 4), entry("b", "BF16", "[1]", 4, 6)});
  std::string data_a = "aaaabb";
  std::string header_b = object({entry("c", "U8", "[8]", 0, 8)});
  std::string data_b = "cccccccc";
  std::string weight_map = R"({"a":"A.safetensors","b":"A.safetensors","c":"B.safetensors"})";
  std::string metadata = R"({"total_size":14})";

  void write() const {
    write_raw(dir.path("A.safetensors"), safetensors_bytes(header_a, data_a));
    write_raw(dir.path("B.safetensors"), safetensors_bytes(header_b, data_b));
    std::string index = R"({"metadata":)";
    index.append(metadata).append(R"(,"weight_map":)").append(weight_map).append("}");
    write_raw(dir.path(kIndex), index);
  }
};

TEST(Checkpoint, OpensShardsAndReadsInPlace) {
  TwoShards files;
  files.write();
  const auto opened = Checkpoint::open(files.dir.path());
  ASSERT_TRUE(opened.is_ok()) << opened.status().message();
  const Checkpoint& checkpoint = opened.value();
  EXPECT_EQ(checkpoint.num_tensors(), 3);
  EXPECT_EQ(checkpoint.num_shards(), 2);
  EXPECT_EQ(checkpoint.total_bytes(), 14u);
  EXPECT_EQ(checkpoint.dir(), files.dir.path());
  const auto b = checkpoint.find("b");
  ASSERT_TRUE(b.has_value());
  EXPECT_EQ(checkpoint.shard_name(b->shard), "A.safetensors");
  EXPECT_EQ(std::memcmp(checkpoint.data(*b).data(), "bb", 2), 0);
  EXPECT_EQ(checkpoint.data(*checkpoint.find("c")).size(), 8u);
  EXPECT_FALSE(checkpoint.find("d").has_value());
}

TEST(Checkpoint, OpensOneFileWithoutAnIndex) {
  TempFolder dir;
  write_raw(dir.path("model.safetensors"), safetensors_bytes(object({entry("t", "U8", "[2]", 0, 2)}) + "      ", "xy"));
  const auto opened = Checkpoint::open(dir.path());
  ASSERT_TRUE(opened.is_ok()) << opened.status().message();
  EXPECT_EQ(std::memcmp(opened.value().data(*opened.value().find("t")).data(), "xy", 2), 0);
}

TEST(Checkpoint, AbsentTotalSizeAndMetadataAreAccepted) {
  for (const char* metadata : {"{}", "null", R"({"other":"x"})"}) {
    TwoShards files;
    files.metadata = metadata;
    files.write();
    EXPECT_TRUE(Checkpoint::open(files.dir.path()).is_ok()) << metadata;
  }
}

TEST(Checkpoint, BothGoldensEqualTheIndependentReader) {
  struct Case {
    const char* folder;
    std::vector<const char*> shards;
    int64_t num_tensors;
  };
  const std::vector<Case> cases = {
      {"golden/k3-tiny", {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}, 1026},
      {"golden/kimi-linear-tiny", {"model-00001-of-00001.safetensors"}, 187},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.folder);
    const auto opened = Checkpoint::open(test::data_path(c.folder));
    ASSERT_TRUE(opened.is_ok()) << opened.status().message();
    const Checkpoint& checkpoint = opened.value();
    EXPECT_EQ(checkpoint.num_tensors(), c.num_tensors);
    int64_t compared = 0;
    for (const char* shard : c.shards) {
      const test::Golden golden = test::Golden::load(std::string(c.folder) + "/" + shard);
      for (const auto& [name, expected] : golden.tensors()) {
        const auto found = checkpoint.find(name);
        ASSERT_TRUE(found.has_value()) << name;
        EXPECT_EQ(checkpoint.shard_name(found->shard), shard);
        EXPECT_EQ(dtype_name(found->dtype), expected.dtype);
        EXPECT_TRUE(std::ranges::equal(found->shape, expected.shape)) << name;
        const auto bytes = checkpoint.data(*found);
        for (size_t i = 0; i < expected.f32.size(); ++i) {
          float value = 0.f;
          if (found->dtype == DType::kF32) {
            std::memcpy(&value, bytes.data() + 4 * i, 4);
          } else {
            bf16 narrow;
            std::memcpy(&narrow, bytes.data() + 2 * i, 2);
            value = to_f32(narrow);
          }
          ASSERT_EQ(value, expected.f32[i]) << name << " at " << i;
        }
        if (!expected.u8.empty()) {
          ASSERT_EQ(bytes.size(), expected.u8.size());
          EXPECT_EQ(std::memcmp(bytes.data(), expected.u8.data(), bytes.size()), 0) << name;
        }
        ++compared;
      }
    }
    EXPECT_EQ(compared, c.num_tensors);
  }
}

TEST(Checkpoint, RefusesFoldersThatAreNone) {
  TempFolder dir;
  EXPECT_THAT(refusal(dir.path("absent")), HasSubstr("no such checkpoint folder"));
  EXPECT_THAT(refusal(dir.path()), HasSubstr("found neither model.safetensors.index.json nor model.safetensors"));
  write_raw(dir.path("file"), "x");
  EXPECT_THAT(refusal(dir.path("file")), HasSubstr("expected a checkpoint folder, found a file"));
  write_raw(dir.path("model.safetensors"), "");
  EXPECT_THAT(refusal(dir.path()), HasSubstr("model.safetensors: truncated"));
}

TEST(Checkpoint, IndexAndHeadersAreComparedBothWays) {
  TwoShards files;
  files.weight_map = R"({"a":"B.safetensors","c":"B.safetensors","d":"A.safetensors","c":"B.safetensors"})";
  files.write();
  EXPECT_THAT(refusal(files.dir.path()),
              AllOf(HasSubstr("4 faults:"),
                    HasSubstr("a: the index places it in B.safetensors, the header of A.safetensors holds it"),
                    HasSubstr("d: the index places it in A.safetensors, whose header lacks it"),
                    HasSubstr("model.safetensors.index.json: duplicate key c"),
                    HasSubstr("b: in the header of A.safetensors, absent from the index")));
}

TEST(Checkpoint, NameInTwoShards) {
  TwoShards files;
  files.header_b = object({entry("b", "U8", "[8]", 0, 8)});
  files.weight_map = R"({"a":"A.safetensors","b":"B.safetensors"})";
  files.write();
  EXPECT_THAT(refusal(files.dir.path()),
              AllOf(HasSubstr("1 fault:"), HasSubstr("b: in two shards, A.safetensors and B.safetensors")));
}

TEST(Checkpoint, NameTwiceInOneHeader) {
  TwoShards files;
  files.header_a = object({entry("a", "F32", "[1]", 0, 4), entry("a", "BF16", "[1]", 4, 6)});
  files.weight_map = R"({"a":"A.safetensors","c":"B.safetensors"})";
  files.write();
  EXPECT_THAT(refusal(files.dir.path()), HasSubstr("A.safetensors: duplicate key a"));
}

TEST(Checkpoint, MissingShardIsListedWithItsTensorsAndWithOtherFaults) {
  TwoShards files;
  files.header_a = object({entry("a", "F99", "[1]", 0, 4), entry("b", "BF16", "[1]", 4, 6)});
  files.write();
  std::filesystem::remove(files.dir.path("B.safetensors"));
  const std::string message = refusal(files.dir.path());
  EXPECT_THAT(message, HasSubstr("B.safetensors: the shard is missing"));
  EXPECT_THAT(message, HasSubstr("c: the index places it in B.safetensors, which cannot be read"));
  EXPECT_THAT(message, HasSubstr("A.safetensors: a has the unknown dtype \"F99\""));
  EXPECT_THAT(message, HasSubstr("3 faults:"));
}

TEST(Checkpoint, TotalSizeMustBeTheTensorBytes) {
  TwoShards files;
  files.metadata = R"({"total_size":15})";
  files.write();
  EXPECT_THAT(refusal(files.dir.path()), HasSubstr("metadata.total_size is 15, the shards hold 14 tensor bytes"));
  files.metadata = R"({"total_size":"14"})";
  files.write();
  EXPECT_THAT(refusal(files.dir.path()), HasSubstr("metadata.total_size must be a whole number of bytes"));
}

TEST(Checkpoint, ShardNamesStayInTheFolder) {
  for (const char* name :
       {"../A.safetensors", "/etc/passwd", "sub/A.safetensors", "..", ".", "", "a\\\\b", "x\\u0000"}) {
    SCOPED_TRACE(name);
    TwoShards files;
    files.weight_map = std::string(R"({"a":")") + name + R"(","b":"A.safetensors","c":"B.safetensors"})";
    files.write();
    EXPECT_THAT(refusal(files.dir.path()), HasSubstr("expected the name of a file in the checkpoint's folder"));
  }
}

TEST(Checkpoint, MalformedIndexes) {
  TwoShards files;
  files.write();
  for (const char* text : {"", "{", "[]", "{\"weight_map\":[]}", "{\"weight_map\":{\"a\":1}}", "{\"weight_map\":{}} x",
                           "{\"metadata\":3,\"weight_map\":{}}"}) {
    SCOPED_TRACE(text);
    write_raw(files.dir.path(kIndex), text);
    EXPECT_THAT(refusal(files.dir.path()), HasSubstr("model.safetensors.index.json: not a valid index"));
  }
  write_raw(files.dir.path(kIndex), "{}");
  EXPECT_THAT(refusal(files.dir.path()), HasSubstr("model.safetensors.index.json: no weight_map"));
  write_raw(files.dir.path(kIndex), R"({"weight_map":{},"weight_map":{}})");
  EXPECT_THAT(refusal(files.dir.path()), HasSubstr("duplicate key weight_map"));
}

TEST(Checkpoint, SingleFileBesideAnIndexThatDoesNotNameIt) {
  TwoShards files;
  files.write();
  write_raw(files.dir.path("model.safetensors"), safetensors_bytes("{}", ""));
  EXPECT_THAT(refusal(files.dir.path()), HasSubstr("remove the one that does not belong"));
}

// Every possible truncation of a file: refused, never a crash; so is every extension.
TEST(Checkpoint, EveryTruncationIsRefused) {
  const std::string header = object({entry("a", "F32", "[3]", 0, 12), entry("b", "BF16", "[5]", 12, 22)});
  const std::string whole = safetensors_bytes(header, std::string(22, 'x'));
  TempFolder dir;
  for (size_t length = 0; length <= whole.size() + 3; ++length) {
    std::string bytes = whole.substr(0, length);
    if (length > whole.size()) bytes += std::string(length - whole.size(), 'y');
    write_raw(dir.path("model.safetensors"), bytes);
    for (const auto mode : {Checkpoint::Mode::kMap, Checkpoint::Mode::kHeadersOnly}) {
      const auto opened = Checkpoint::open(dir.path(), mode);
      EXPECT_EQ(opened.is_ok(), length == whole.size()) << length;
      if (length < whole.size() && length >= 8) {
        EXPECT_THAT(opened.status().message(), HasSubstr("truncated")) << length;
      }
    }
  }
}

TEST(Checkpoint, TensorAbove4GiBInASparseFile) {
  const uint64_t big = (uint64_t{5} << 30) + 3;
  const std::string header =
      object({entry("big", "U8", cat('[', big, ']'), 0, big), entry("tail", "U8", "[4]", big, big + 4)});
  TempFolder dir;
  const std::string path = dir.path("model.safetensors");
  write_raw(path, safetensors_bytes(header, ""));
  std::filesystem::resize_file(path, 8 + header.size() + big + 4);
  {
    std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(static_cast<std::streamoff>(8 + header.size() + big));
    out.write("tail", 4);
  }
  const auto opened = Checkpoint::open(dir.path());
  ASSERT_TRUE(opened.is_ok()) << opened.status().message();
  const auto tail = opened.value().find("tail");
  EXPECT_EQ(std::memcmp(opened.value().data(*tail).data(), "tail", 4), 0);
  const auto data = opened.value().data(*opened.value().find("big"));
  EXPECT_EQ(data.size(), big);
  EXPECT_EQ(data[big - 1], std::byte{0});
}

// Field report 70 at a tenth of the size: what stays allocated is bounded by bytes a tensor, not by a string each.
TEST(Checkpoint, MemoryATensorIsBounded) {
  constexpr int kNumTensors = 50'000;
  std::string header = "{";
  std::string weight_map = "{";
  size_t name_bytes = 0;
  for (int i = 0; i < kNumTensors; ++i) {
    std::string name = "language_model.model.layers.12.block_sparse_moe.experts.";
    name.append(std::to_string(i)).append(".w1.weight_packed");
    name_bytes += name.size();
    if (i > 0) header += ',';
    header += entry(name, "U8", "[2,2]", static_cast<uint64_t>(4 * i), static_cast<uint64_t>(4 * i + 4));
    weight_map.append(i > 0 ? ",\"" : "\"").append(name).append("\":\"S.safetensors\"");
  }
  TempFolder dir;
  write_raw(dir.path("S.safetensors"), safetensors_bytes(header + "}", std::string(4 * kNumTensors, 'x')));
  write_raw(dir.path(kIndex), "{\"weight_map\":" + weight_map + "}}");
  const auto opened = Checkpoint::open(dir.path(), Checkpoint::Mode::kHeadersOnly);
  ASSERT_TRUE(opened.is_ok()) << opened.status().message();
  EXPECT_EQ(opened.value().num_tensors(), kNumTensors);
  EXPECT_LE(opened.value().table_bytes(), name_bytes + kNumTensors * 24 + 4096);
}

TEST(Checkpoint, MovesKeepItsViewsValid) {
  TwoShards files;
  files.write();
  auto opened = Checkpoint::open(files.dir.path());
  ASSERT_TRUE(opened.is_ok());
  const TensorEntry before = opened.value().tensor(0);
  const Checkpoint moved = std::move(opened).value();
  EXPECT_EQ(before.name.data(), moved.tensor(0).name.data());
}

}  // namespace
}  // namespace tandem

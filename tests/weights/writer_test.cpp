// Writers: round trips through the reader and the independent one, and nothing left behind after a failure.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/cat.h"
#include "support/golden.h"
#include "weights/atomic_file.h"
#include "weights/checkpoint.h"
#include "weights/output_folder.h"
#include "weights/raw_checkpoint.h"
#include "weights/safetensors_writer.h"
#include "weights/shard_index.h"
#include "weights/shard_plan.h"

namespace tandem {
namespace {

using test::TempFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> names_in(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& item : std::filesystem::directory_iterator(dir)) names.push_back(item.path().filename().string());
  std::ranges::sort(names);
  return names;
}

// Files of this process may not grow beyond `bytes` while it lives: the portable stand-in for a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limited{bytes, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limited), 0);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(SafetensorsWriter, RoundTripThroughBothReaders) {
  TempFolder dir;
  const std::vector<float> f32 = {1.5f, -2.f, 3.25f};
  const std::vector<uint16_t> bf16_bits = {0x3f80, 0xc000};
  const std::vector<uint8_t> u8 = {1, 2, 3, 255};
  const std::vector<int32_t> i32 = {-7};
  const int64_t shape3[] = {3}, shape2[] = {1, 2}, shape4[] = {2, 2}, empty[] = {0, 9};
  const std::vector<TensorToWrite> tensors = {
      {{"u8", DType::kU8, shape4}, std::as_bytes(std::span(u8))},
      {{"p.\"quoted\"\\ \n", DType::kF32, shape3}, std::as_bytes(std::span(f32))},
      {{"half", DType::kBF16, shape2}, std::as_bytes(std::span(bf16_bits))},
      {{"nothing", DType::kF32, empty}, {}},
      {{"scalar", DType::kI32, {}}, std::as_bytes(std::span(i32))},
  };
  const std::string path = dir.path("model.safetensors");
  ASSERT_TRUE(write_safetensors(path, tensors).is_ok());
  EXPECT_THAT(names_in(dir.path()), ElementsAre("model.safetensors"));

  const test::Golden golden = test::Golden::load_path(path);
  EXPECT_EQ(golden["p.\"quoted\"\\ \n"].f32, f32);
  EXPECT_EQ(golden["half"].f32, (std::vector<float>{1.f, -2.f}));
  EXPECT_EQ(golden["u8"].u8, u8);
  EXPECT_EQ(golden["scalar"].i32, i32);
  EXPECT_EQ(golden["nothing"].shape, (std::vector<int64_t>{0, 9}));

  const auto opened = Checkpoint::open(dir.path());
  ASSERT_TRUE(opened.is_ok()) << opened.status().message();
  for (const TensorToWrite& tensor : tensors) {
    const auto found = opened.value().find(tensor.spec.name);
    ASSERT_TRUE(found.has_value()) << tensor.spec.name;
    EXPECT_EQ(found->dtype, tensor.spec.dtype);
    EXPECT_TRUE(std::ranges::equal(found->shape, tensor.spec.shape));
    const auto bytes = opened.value().data(*found);
    EXPECT_TRUE(std::ranges::equal(bytes, tensor.bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % static_cast<uintptr_t>(dtype_size(found->dtype)), 0u);
  }
}

TEST(SafetensorsWriter, StreamsOutOfOrderAndCountsTheBytes) {
  TempFolder dir;
  auto file = AtomicFile::create(dir.path("model.safetensors"));
  ASSERT_TRUE(file.is_ok());
  const int64_t shape[] = {6};
  const std::vector<TensorSpec> specs = {{"a", DType::kU8, shape}, {"b", DType::kU8, shape}};
  auto writer = SafetensorsWriter::create(file.value(), specs);
  ASSERT_TRUE(writer.is_ok());
  const std::string text = "abcdef";
  const auto bytes = std::as_bytes(std::span(text));
  ASSERT_TRUE(writer.value().write(1, 0, bytes).is_ok());
  ASSERT_TRUE(writer.value().write(0, 3, bytes.subspan(3)).is_ok());
  const Status early = writer.value().finish();
  EXPECT_EQ(early.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(early.message(), HasSubstr("its tensors have 12 bytes, 9 were written"));
  ASSERT_TRUE(writer.value().write(0, 0, bytes.first(3)).is_ok());
  ASSERT_TRUE(writer.value().finish().is_ok());
  ASSERT_TRUE(file.value().publish().is_ok());
  const auto opened = Checkpoint::open(dir.path());
  ASSERT_TRUE(opened.is_ok()) << opened.status().message();
  for (const char* name : {"a", "b"}) {
    EXPECT_EQ(std::memcmp(opened.value().data(*opened.value().find(name)).data(), "abcdef", 6), 0);
  }
}

TEST(SafetensorsWriter, RefusesWhatTheFormatCannotSay) {
  TempFolder dir;
  const int64_t one[] = {1}, negative[] = {-1}, huge[] = {int64_t{1} << 40, int64_t{1} << 40};
  const auto byte = std::as_bytes(std::span("x", 1));
  struct Case {
    TensorSpec spec;
    const char* message;
  };
  for (const Case& c :
       {Case{{"__metadata__", DType::kU8, one}, "cannot be the name of a tensor"},
        Case{{"", DType::kU8, one}, "cannot be the name of a tensor"}, Case{{"\xff", DType::kU8, one}, "not UTF-8"}}) {
    const std::vector<TensorToWrite> tensors = {{c.spec, byte}};
    EXPECT_THAT(write_safetensors(dir.path("f"), tensors).message(), HasSubstr(c.message));
  }
  EXPECT_FALSE(layout_safetensors(std::vector<TensorSpec>{{"t", DType::kU8, negative}}).is_ok());
  EXPECT_FALSE(layout_safetensors(std::vector<TensorSpec>{{"t", DType::kU8, huge}}).is_ok());
  EXPECT_THAT(
      layout_safetensors(std::vector<TensorSpec>{{"t", DType::kU8, one}, {"t", DType::kU8, one}}).status().message(),
      HasSubstr("t: two tensors have this name"));
  const std::vector<TensorToWrite> short_data = {{{"t", DType::kF32, one}, byte}};
  EXPECT_THAT(write_safetensors(dir.path("f"), short_data).message(), HasSubstr("t needs 4 bytes, found 1"));
  EXPECT_THAT(names_in(dir.path()), IsEmpty());
}

TEST(AtomicFile, ReplacesOnlyWhenPublished) {
  TempFolder dir;
  const std::string path = dir.path("config.json");
  ASSERT_TRUE(write_file_atomic(path, "old").is_ok());
  {
    auto file = AtomicFile::create(path);
    ASSERT_TRUE(file.is_ok());
    ASSERT_TRUE(file.value().write_at(0, std::as_bytes(std::span("new!", 4))).is_ok());
    ASSERT_TRUE(file.value().finish().is_ok());
    EXPECT_EQ(test::read_text(path), "old");
    EXPECT_EQ(names_in(dir.path()).size(), 2u);
  }
  EXPECT_EQ(test::read_text(path), "old");
  EXPECT_THAT(names_in(dir.path()), ElementsAre("config.json"));
  ASSERT_TRUE(write_file_atomic(path, "new").is_ok());
  EXPECT_EQ(test::read_text(path), "new");
}

TEST(AtomicFile, NamesTheObjectOfAFailure) {
  TempFolder dir;
  const Status absent = write_file_atomic(dir.path("absent/config.json"), "x");
  EXPECT_EQ(absent.code(), StatusCode::kIo);
  EXPECT_THAT(absent.message(), HasSubstr("absent/config.json: cannot create: No such file"));
  EXPECT_FALSE(write_file_atomic(dir.path() + "/", "x").is_ok());
  std::filesystem::create_directory(dir.path("folder"));
  EXPECT_THAT(write_file_atomic(dir.path("folder"), "x").message(), HasSubstr("expected a new file or a regular file"));
  EXPECT_THAT(names_in(dir.path()), ElementsAre("folder"));
}

TEST(AtomicFile, SizeLimitIsAStatusAndLeavesNothing) {
  TempFolder dir;
  const std::string text(100'000, 'x');
  {
    const FileSizeLimit limit(50'000);
    const Status status = write_file_atomic(dir.path("big"), text);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(status.message(), HasSubstr("big: cannot write"));
    const int64_t shape[] = {100'000};
    const std::vector<TensorToWrite> tensors = {{{"t", DType::kU8, shape}, std::as_bytes(std::span(text))}};
    EXPECT_EQ(write_safetensors(dir.path("t.safetensors"), tensors).code(), StatusCode::kResourceExhausted);
  }
  EXPECT_THAT(names_in(dir.path()), IsEmpty());
}

TEST(AtomicFile, FullDiskIsAStatusAndLeavesNothing) {
  TempFolder dir;
  if (::mount("tmpfs", dir.path().c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "needs the right to mount a small tmpfs (run as root): " << std::strerror(errno);
  }
  const std::string text(2 << 20, 'x');
  const Status status = write_file_atomic(dir.path("big"), text);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("No space left on device"));
  EXPECT_THAT(names_in(dir.path()), IsEmpty());
  const int64_t shape[] = {2 << 20};
  const std::vector<TensorToWrite> tensors = {{{"t", DType::kU8, shape}, std::as_bytes(std::span(text))}};
  EXPECT_EQ(write_safetensors(dir.path("t.safetensors"), tensors).code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(names_in(dir.path()), IsEmpty());
  EXPECT_EQ(::umount2(dir.path().c_str(), MNT_DETACH), 0);
}

TEST(OutputFolder, AppearsTogetherOrNotAtAll) {
  TempFolder dir;
  const std::string path = dir.path("a/b/out/");
  {
    auto folder = OutputFolder::create(path, OutputFolder::Existing::kRefuse);
    ASSERT_TRUE(folder.is_ok()) << folder.status().message();
    ASSERT_TRUE(folder.value().write_file("x", "1").is_ok());
    EXPECT_FALSE(std::filesystem::exists(path + "x"));
  }
  EXPECT_THAT(names_in(dir.path()), IsEmpty());
  {
    auto folder = OutputFolder::create(path, OutputFolder::Existing::kRefuse);
    ASSERT_TRUE(folder.is_ok());
    ASSERT_TRUE(folder.value().write_file("x", "1").is_ok());
    ASSERT_TRUE(folder.value().write_file("y", "2").is_ok());
    ASSERT_TRUE(folder.value().commit().is_ok());
  }
  EXPECT_THAT(names_in(path), ElementsAre("x", "y"));
  EXPECT_THAT(OutputFolder::create(path, OutputFolder::Existing::kRefuse).status().message(),
              HasSubstr("expected a new or empty folder, found 2 files in it (x, …)"));
  {
    auto folder = OutputFolder::create(path, OutputFolder::Existing::kOverwrite);
    ASSERT_TRUE(folder.is_ok());
    ASSERT_TRUE(folder.value().write_file("x", "3").is_ok());
    folder.value().remove_at_commit("y");
    EXPECT_EQ(test::read_text(path + "x"), "1");
    ASSERT_TRUE(folder.value().commit().is_ok());
  }
  EXPECT_THAT(names_in(path), ElementsAre("x"));
  EXPECT_EQ(test::read_text(path + "x"), "3");
  EXPECT_THAT(OutputFolder::create(path + "x", OutputFolder::Existing::kRefuse).status().message(),
              HasSubstr("expected a folder, found a file"));
  EXPECT_EQ(OutputFolder::create(path + "x/sub", OutputFolder::Existing::kRefuse).status().code(), StatusCode::kIo);
}

// A name that cannot be renamed onto (a folder of that name): what was renamed before it is taken back.
TEST(OutputFolder, FailedCommitTakesBackWhatItPublished) {
  TempFolder dir;
  {
    auto folder = OutputFolder::create(dir.path(), OutputFolder::Existing::kRefuse);
    ASSERT_TRUE(folder.is_ok());
    ASSERT_TRUE(folder.value().write_file("first", "1").is_ok());
    ASSERT_TRUE(folder.value().write_file("second", "2").is_ok());
    std::filesystem::create_directory(dir.path("second"));
    EXPECT_FALSE(folder.value().commit().is_ok());
  }
  EXPECT_THAT(names_in(dir.path()), ElementsAre("second"));
}

TEST(ShardPlan, ClosesAShardBeforeItIsTooLarge) {
  TensorTable table;
  for (const int64_t bytes : {4, 4, 4, 20, 1, 0, 9}) {
    const int64_t shape[] = {bytes};
    table.add(cat("t", table.size()), DType::kU8, shape, 0, 0);
  }
  const auto shards = plan_shards(table, 10);
  ASSERT_EQ(shards.size(), 4u);
  const std::vector<int64_t> counts = {2, 1, 1, 3};
  const std::vector<uint64_t> bytes = {8, 4, 20, 10};
  int64_t first = 0;
  for (size_t s = 0; s < shards.size(); ++s) {
    EXPECT_EQ(shards[s].name, cat("model-0000", s + 1, "-of-00004.safetensors"));
    EXPECT_EQ(shards[s].first, first);
    EXPECT_EQ(shards[s].count, counts[s]);
    EXPECT_EQ(shards[s].data_bytes, bytes[s]);
    first += shards[s].count;
  }
  std::string json = shard_index_json(table, shards);
  const size_t json_bytes = json.size();
  json.resize(json_bytes + 64);
  FaultList faults;
  int64_t entries = 0;
  const auto summary = parse_shard_index(
      std::as_bytes(std::span(json)).first(json_bytes),
      [&](std::string_view tensor, std::string_view shard) {
        EXPECT_EQ(tensor, cat("t", entries));
        EXPECT_EQ(shard, shards[entries < 2 ? 0 : entries < 3 ? 1 : entries < 4 ? 2 : 3].name);
        ++entries;
      },
      faults);
  EXPECT_TRUE(summary.readable);
  EXPECT_EQ(summary.total_size, 42u);
  EXPECT_EQ(entries, 7);
}

}  // namespace
}  // namespace tandem

// Reads of blocks: the bytes of the files, whatever the world does on the way, or a refusal that names the place.
#include "stream/direct_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>

#include "base/cat.h"
#include "support/temp_folder.h"

namespace tandem {
namespace {

using testing::HasSubstr;

class Blocks {  // aligned memory
 public:
  explicit Blocks(size_t bytes) : bytes_(bytes) {
    memory_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;
  ~Blocks() { ::munmap(memory_, bytes_); }
  std::span<std::byte> part(size_t begin, size_t count) const {
    return std::span(static_cast<std::byte*>(memory_), bytes_).subspan(begin, count);
  }

 private:
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

std::string random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(engine());
  return bytes;
}

class DirectReaderTest : public testing::TestWithParam<DirectReaderOptions::Backend> {
 protected:
  DirectReaderOptions options() const {
    DirectReaderOptions made;
    made.backend = GetParam();
    return made;
  }
  std::unique_ptr<DirectReader> open(const std::vector<std::string>& paths, const DirectReaderOptions& made) {
    Result<std::unique_ptr<DirectReader>> reader = DirectReader::open(paths, made);
    EXPECT_TRUE(reader.is_ok()) << reader.status().message();
    return std::move(reader).value();
  }
  // Everything that is pending, by tag.
  static std::map<uint64_t, ReadCompletion> finish(DirectReader& reader) {
    std::map<uint64_t, ReadCompletion> all;
    std::vector<ReadCompletion> done;
    while (reader.num_pending() > 0) reader.wait(done);
    for (ReadCompletion& completion : done) {
      EXPECT_TRUE(all.emplace(completion.tag, completion).second) << "tag " << completion.tag << " completed twice";
    }
    return all;
  }

  test::TempFolder folder_;
};

TEST_P(DirectReaderTest, ReadsWhatTheFilesHoldAtEveryDepth) {
  const std::string a = random_bytes(300'000, 1), b = random_bytes(kDirectAlignment * 7, 2);
  const std::vector<std::string> paths = {folder_.write("a", a), folder_.write("b", b)};
  for (const unsigned depth : {1u, 3u, 32u}) {
    DirectReaderOptions made = options();
    made.queue_depth = depth;
    const std::unique_ptr<DirectReader> reader = open(paths, made);
    EXPECT_EQ(reader->file_bytes(0), a.size());
    EXPECT_EQ(reader->num_drives(), 1);
    std::mt19937_64 engine(depth);
    const Blocks memory(100 * 5 * kDirectAlignment);
    std::vector<ReadRequest> requests;
    for (uint64_t i = 0; i < 100; ++i) {
      const auto file = static_cast<uint32_t>(engine() % 2);
      const uint64_t blocks = direct_ceil(reader->file_bytes(file)) / kDirectAlignment;
      const uint64_t first = engine() % blocks;
      const uint64_t count = std::min(1 + engine() % 5, blocks - first);
      requests.push_back(
          {file, first * kDirectAlignment, memory.part(i * 5 * kDirectAlignment, count * kDirectAlignment), 1000 + i});
      reader->submit(requests.back(), engine() % 2 == 0);
      reader->promote(1000 + engine() % (i + 1));
    }
    const std::map<uint64_t, ReadCompletion> done = finish(*reader);
    ASSERT_EQ(done.size(), requests.size());
    uint64_t bytes = 0;
    for (const ReadRequest& request : requests) {
      ASSERT_TRUE(done.at(request.tag).status.is_ok()) << done.at(request.tag).status.message();
      const std::string& file = request.file == 0 ? a : b;
      const uint64_t count = std::min<uint64_t>(request.memory.size(), file.size() - request.offset);
      EXPECT_EQ(std::memcmp(request.memory.data(), file.data() + request.offset, count), 0) << request.tag;
      bytes += count;
    }
    EXPECT_EQ(reader->stats().bytes, bytes);
    EXPECT_EQ(reader->stats().reads, requests.size());
    EXPECT_EQ(reader->stats().retries, 0u);
  }
}

TEST_P(DirectReaderTest, ShortAnswersAndInterruptionsChangeNothing) {
  const std::string bytes = random_bytes(40'000, 3);
  DirectReaderOptions made = options();
  made.faults = [](const ReadAttempt& attempt) -> ReadFault {
    switch (attempt.number % 3) {
      case 0: return {ReadFault::Kind::kError, 0, EINTR};
      case 1: return {ReadFault::Kind::kShort, 5000, 0};  // ends inside a block
      default: return {ReadFault::Kind::kError, 0, EAGAIN};
    }
  };
  const std::unique_ptr<DirectReader> reader = open({folder_.write("a", bytes)}, made);
  const Blocks memory(direct_ceil(bytes.size()));
  reader->submit({0, 0, memory.part(0, direct_ceil(bytes.size())), 7});
  const std::map<uint64_t, ReadCompletion> done = finish(*reader);
  ASSERT_TRUE(done.at(7).status.is_ok()) << done.at(7).status.message();
  EXPECT_EQ(std::memcmp(memory.part(0, 1).data(), bytes.data(), bytes.size()), 0);
  EXPECT_GE(reader->stats().retries, 16u);
}

TEST_P(DirectReaderTest, AnErrorOfTheDriveNamesFileOffsetAndBytes) {
  const std::string path = folder_.write("shard", random_bytes(8 * kDirectAlignment, 4));
  DirectReaderOptions made = options();
  made.faults = [](const ReadAttempt& attempt) -> ReadFault {
    if (attempt.offset == 2 * kDirectAlignment) return {ReadFault::Kind::kError, 0, EIO};
    return {};
  };
  const std::unique_ptr<DirectReader> reader = open({path}, made);
  const Blocks memory(8 * kDirectAlignment);
  for (uint64_t i = 0; i < 8; ++i) {
    reader->submit({0, i * kDirectAlignment, memory.part(i * kDirectAlignment, kDirectAlignment), i});
  }
  const std::map<uint64_t, ReadCompletion> done = finish(*reader);
  ASSERT_EQ(done.size(), 8u);
  for (const auto& [tag, completion] : done) {
    EXPECT_EQ(completion.status.is_ok(), tag != 2) << tag;
    EXPECT_FALSE(completion.memory_lost);
  }
  EXPECT_EQ(done.at(2).status.code(), StatusCode::kIo);
  EXPECT_THAT(done.at(2).status.message(),
              HasSubstr(cat(path, ": reading 4096 bytes at offset 8192: ", std::strerror(EIO))));
}

TEST_P(DirectReaderTest, AReadWithoutAnAnswerEndsAtTheDeadlineAndSoDoesWhatWaitsBehindIt) {
  const std::string path = folder_.write("shard", random_bytes(4 * kDirectAlignment, 5));
  DirectReaderOptions made = options();
  made.queue_depth = 1;
  made.stall_seconds = 0.05;
  bool stalling = true;
  made.faults = [&](const ReadAttempt&) -> ReadFault {
    if (stalling) return {ReadFault::Kind::kStall, 0, 0};
    return {};
  };
  const std::unique_ptr<DirectReader> reader = open({path}, made);
  const Blocks memory(4 * kDirectAlignment);
  for (uint64_t i = 0; i < 3; ++i) {
    reader->submit({0, i * kDirectAlignment, memory.part(i * kDirectAlignment, kDirectAlignment), i}, i != 2);
  }
  const std::map<uint64_t, ReadCompletion> done = finish(*reader);
  ASSERT_EQ(done.size(), 3u);
  EXPECT_TRUE(done.at(0).memory_lost);
  EXPECT_THAT(done.at(0).status.message(),
              HasSubstr(cat(path, ": reading 4096 bytes at offset 0: no answer for 0.05")));
  for (const uint64_t tag : {1u, 2u}) {
    EXPECT_FALSE(done.at(tag).memory_lost);
    EXPECT_THAT(done.at(tag).status.message(), HasSubstr("not tried, the drive does not answer"));
  }
}

TEST_P(DirectReaderTest, AFileThatLostItsEndIsRefused) {
  const std::string path = folder_.write("shard", random_bytes(4 * kDirectAlignment, 6));
  const std::unique_ptr<DirectReader> reader = open({path}, options());
  folder_.write("shard", random_bytes(kDirectAlignment + 100, 6));
  const Blocks memory(4 * kDirectAlignment);
  reader->submit({0, 0, memory.part(0, 4 * kDirectAlignment), 1});
  const std::map<uint64_t, ReadCompletion> done = finish(*reader);
  EXPECT_EQ(done.at(1).status.code(), StatusCode::kIo);
  EXPECT_THAT(done.at(1).status.message(), HasSubstr("the file ends at byte 4196, expected 16384 bytes"));
}

TEST_P(DirectReaderTest, DestructionWaitsForWhatIsUnderWay) {
  const std::string path = folder_.write("shard", random_bytes(64 * kDirectAlignment, 8));
  const Blocks memory(64 * kDirectAlignment);
  const std::unique_ptr<DirectReader> reader = open({path}, options());
  for (uint64_t i = 0; i < 64; ++i) {
    reader->submit({0, i * kDirectAlignment, memory.part(i * kDirectAlignment, kDirectAlignment), i});
  }
  EXPECT_EQ(reader->num_pending(), 64);
}

INSTANTIATE_TEST_SUITE_P(Backends, DirectReaderTest,
                         testing::Values(DirectReaderOptions::Backend::kBest, DirectReaderOptions::Backend::kThreads),
                         [](const auto& backend) {
                           return backend.param == DirectReaderOptions::Backend::kBest ? "Best" : "Threads";
                         });

TEST(DirectReader, SaysHowItReads) {
  const test::TempFolder folder;
  const std::vector<std::string> paths = {folder.write("a", "x")};
  DirectReaderOptions options;
  options.backend = DirectReaderOptions::Backend::kThreads;
  const Result<std::unique_ptr<DirectReader>> reader = DirectReader::open(paths, options);
  ASSERT_TRUE(reader.is_ok());
  const std::string cache =
      reader.value()->bypasses_page_cache() ? "O_DIRECT" : "page cache (the file system refuses O_DIRECT)";
  EXPECT_EQ(reader.value()->description(), "threads, " + cache);
}

TEST(DirectReader, RefusesWhatItCannotRead) {
  const test::TempFolder folder;
  EXPECT_EQ(DirectReader::open({}).status().code(), StatusCode::kInvalidArgument);
  const std::vector<std::string> missing = {folder.path("missing")};
  const Status not_found = DirectReader::open(missing).status();
  EXPECT_EQ(not_found.code(), StatusCode::kNotFound);
  EXPECT_THAT(not_found.message(), HasSubstr(missing[0]));
  const std::vector<std::string> a_folder = {folder.path()};
  EXPECT_THAT(DirectReader::open(a_folder).status().message(), HasSubstr("expected a regular file"));
  DirectReaderOptions options;
  options.queue_depth = 0;
  const std::vector<std::string> paths = {folder.write("a", "x")};
  EXPECT_EQ(DirectReader::open(paths, options).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem

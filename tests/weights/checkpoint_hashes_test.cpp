#include "weights/checkpoint_hashes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/cat.h"
#include "support/golden.h"
#include "support/temp_folder.h"

namespace tandem {
namespace {

using test::TempFolder;
using testing::HasSubstr;

std::string hex_of(std::string_view text) { return sha256_hex(sha256(text)); }

TEST(CheckpointHashesTest, EveryFormOfReferenceIsFound) {
  const TempFolder dir;
  for (const char* name : {"a", "b", "c", "d", "e"}) dir.write(name, name);
  dir.write("SHA256SUMS", cat("# made elsewhere\n", hex_of("a"), "  a\n\n", hex_of("b"), " *./b\r\n"));
  dir.write("c.sha256", hex_of("c") + "\n");
  const std::string hub = ".cache/huggingface/download/";
  dir.write(hub + "d.metadata", cat("0123456789012345678901234567890123456789\n", hex_of("d"), "\n1722.5\n"));
  dir.write(hub + "e.metadata", "c0ffee\n0123456789012345678901234567890123456789\n1722.5\n");  // a Git hash
  dir.write(hub + "x.abc.incomplete", "");
  std::filesystem::create_symlink(cat("../../blobs/", hex_of("f")), dir.path("f"));

  const ReferenceHashes found = find_reference_hashes(dir.path());
  EXPECT_THAT(found.faults, testing::IsEmpty());
  ASSERT_EQ(found.hashes.size(), 5u);
  const char* const files[] = {"a", "b", "c", "d", "f"};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(found.hashes[i].file, files[i]);
    EXPECT_EQ(found.hashes[i].hex, hex_of(files[i]));
  }
  EXPECT_THAT(found.unfinished, testing::ElementsAre(HasSubstr("x.abc.incomplete")));
}

TEST(CheckpointHashesTest, BadLinesAndContradictionsAreNamed) {
  const TempFolder dir;
  dir.write("SHA256SUMS", cat(hex_of("a"), "  a\nnot a hash  b\n", hex_of("c"), "  ../c\n", hex_of("d"), "\n"));
  dir.write("a.sha256", hex_of("other"));
  const ReferenceHashes found = find_reference_hashes(dir.path());
  ASSERT_EQ(found.hashes.size(), 1u);
  EXPECT_EQ(found.hashes[0].hex, hex_of("a")) << "the list counts before the single file";
  EXPECT_THAT(found.faults, testing::ElementsAre(HasSubstr("SHA256SUMS line 2"), HasSubstr("SHA256SUMS line 3"),
                                                 HasSubstr("SHA256SUMS line 4"), HasSubstr("different hashes")));
}

TEST(CheckpointHashesTest, FilesAreHashedAndTheListWrittenIsReadAgain) {
  const TempFolder dir;
  const std::string large(9'000'001, 'x');  // more than two pieces
  dir.write("model.safetensors", large);
  dir.write("config.json", "{}");
  dir.write(".hidden", "no");
  dir.write("sub/file", "no");
  const auto files = hashable_files(dir.path());
  ASSERT_TRUE(files.is_ok());
  EXPECT_EQ(files.value(), (std::vector<std::string>{"config.json", "model.safetensors"}));
  ThreadPool pool(2);
  uint64_t last = 0, total = 0;
  const auto hashes = hash_files(
      dir.path(), files.value(), pool,
      [&](uint64_t done_bytes, uint64_t total_bytes) {
        EXPECT_GT(done_bytes, last);
        last = done_bytes;
        total = total_bytes;
      },
      nullptr);
  EXPECT_EQ(last, 9'000'003u);
  EXPECT_EQ(total, last);
  ASSERT_EQ(hashes.size(), 2u);
  EXPECT_EQ(hashes[1].hex, hex_of(large));
  ASSERT_TRUE(write_hash_file(dir.path(), hashes).is_ok());
  EXPECT_EQ(test::read_text(dir.path("SHA256SUMS")),
            cat(hex_of("{}"), "  config.json\n", hex_of(large), "  model.safetensors\n"));
  const ReferenceHashes again = find_reference_hashes(dir.path());
  ASSERT_EQ(again.hashes.size(), 2u);
  EXPECT_EQ(again.hashes[1].hex, hashes[1].hex);
  EXPECT_EQ(write_hash_file(dir.path(), hashes).code(), StatusCode::kFailedPrecondition);
}

TEST(CheckpointHashesTest, WhatCannotBeReadAndWhatIsStopped) {
  const TempFolder dir;
  dir.write("a", "a");
  ThreadPool pool(1);
  const std::atomic<bool> cancel = true;
  const auto hashes = hash_files(
      dir.path(), {"a", "none"}, pool, [](uint64_t, uint64_t) {}, &cancel);
  EXPECT_EQ(hashes[0].status.code(), StatusCode::kCancelled);
  EXPECT_EQ(hashes[1].status.code(), StatusCode::kIo);
  EXPECT_THAT(hashes[1].status.message(), HasSubstr("none"));
  EXPECT_EQ(write_hash_file(dir.path(), hashes).code(), StatusCode::kCancelled);
  EXPECT_FALSE(std::filesystem::exists(dir.path("SHA256SUMS")));
}

}  // namespace
}  // namespace tandem

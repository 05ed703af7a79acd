#include "stream/drive_speed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "support/temp_folder.h"

namespace tandem {
namespace {

TEST(DriveSpeed, CountsWhatItReadsAndRefusesWhatItCannot) {
  const test::TempFolder folder;
  const std::vector<std::string> paths = {folder.write("small", std::string(100, 'a')),
                                          folder.write("large", std::string(100'000, 'b'))};
  DirectReaderOptions options;
  options.queue_depth = 4;
  const Result<DriveSpeed> speed = measure_drive_speed(paths, 10'000, 0.01, options);
  ASSERT_TRUE(speed.is_ok()) << speed.status().message();
  EXPECT_GE(speed.value().reads, 4);
  EXPECT_GT(speed.value().bytes_per_second, 0.0);
  EXPECT_THAT(measure_drive_speed(paths, 200'000, 0.01, options).status().message(),
              testing::HasSubstr("no file holds a read of 200704 bytes"));
  options.faults = [](const ReadAttempt&) -> ReadFault { return {ReadFault::Kind::kError, 0, EIO}; };
  EXPECT_EQ(measure_drive_speed(paths, 10'000, 0.01, options).status().code(), StatusCode::kIo);
}

}  // namespace
}  // namespace tandem

// Memory that a process may take: field report 65, a host's memory is not what a container has.
#include "engine/memory_info.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace tandem {
namespace {

namespace fs = std::filesystem;

class MemoryInfoTest : public ::testing::Test {
 protected:
  MemoryInfoTest() {
    root_ = (fs::temp_directory_path() / "tandem_cgroup_XXXXXX").string();
    EXPECT_NE(::mkdtemp(root_.data()), nullptr);
  }
  ~MemoryInfoTest() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }
  std::string root_;
};

TEST_F(MemoryInfoTest, TheTightestOfNestedGroupsCountsAndFilePagesDoNot) {
  write("/a/memory.max", "1000000");
  write("/a/memory.current", "700000");
  write("/a/memory.stat", "anon 500000\ninactive_file 150000");
  write("/a/b/memory.max", "max");
  write("/a/b/memory.high", "600000");
  write("/a/b/memory.current", "100000");
  EXPECT_EQ(cgroup_room_bytes(root_, "0::/a/b\n"), 450000);  // of /a
  write("/a/b/memory.high", "300000");
  EXPECT_EQ(cgroup_room_bytes(root_, "0::/a/b\n"), 200000);
  write("/a/memory.current", "5000000");
  EXPECT_EQ(cgroup_room_bytes(root_, "0::/a/b\n"), 0);
}

TEST_F(MemoryInfoTest, VersionOneAndNoLimit) {
  write("/memory/job/memory.limit_in_bytes", "800000");
  write("/memory/job/memory.usage_in_bytes", "300000");
  write("/memory/memory.limit_in_bytes", "9223372036854771712");
  write("/memory/memory.usage_in_bytes", "9000000");
  EXPECT_EQ(cgroup_room_bytes(root_, "5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n"), 500000);
  EXPECT_EQ(cgroup_room_bytes(root_, "4:memory:/other\n0::/\n"), std::nullopt);
  EXPECT_EQ(cgroup_room_bytes(root_, ""), std::nullopt);
  EXPECT_EQ(cgroup_room_bytes(root_, "nonsense\n::\n"), std::nullopt);
}

TEST_F(MemoryInfoTest, TheLimitItselfNamesItsGroup) {
  write("/a/memory.max", "1000000");
  write("/a/memory.current", "999999");
  write("/a/b/memory.high", "2000000");
  const auto limit = cgroup_memory_limit(root_, "0::/a/b\n");
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->bytes, 1000000);
  EXPECT_EQ(limit->folder, root_ + "/a");
  EXPECT_FALSE(cgroup_memory_limit(root_, "0::/other\n").has_value());
}

TEST_F(MemoryInfoTest, ThisMachineHasMemory) {
  EXPECT_GT(available_memory_bytes(), 0);
  EXPECT_GE(total_memory_bytes(), available_memory_bytes());
}

}  // namespace
}  // namespace tandem

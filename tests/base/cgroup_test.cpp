#include "base/cgroup.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/cat.h"
#include "support/temp_folder.h"

namespace tandem {
namespace {

using test::TempFolder;

TEST(CgroupTest, TheTightestNestedQuotaOfVersionTwo) {
  const TempFolder root;
  root.write("job/cpu.max", "150000 100000\n");
  root.write("job/step/cpu.max", "max 100000\n");
  const auto quota = cgroup_cpu_quota(root.path(), "0::/job/step\n");
  ASSERT_TRUE(quota.has_value());
  EXPECT_EQ(quota->cpus, 1.5);
  EXPECT_EQ(quota->folder, root.path("job"));
  root.write("job/step/cpu.max", "50000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(root.path(), "0::/job/step\n")->cpus, 0.5);
}

TEST(CgroupTest, VersionOneAndNoQuota) {
  const TempFolder root;
  root.write("cpu/a/cpu.cfs_quota_us", "200000\n");
  root.write("cpu/a/cpu.cfs_period_us", "50000\n");
  root.write("cpu/b/cpu.cfs_quota_us", "-1\n");
  root.write("cpu/b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_quota(root.path(), "3:cpu,cpuacct:/a\n0::/\n")->cpus, 4.0);
  EXPECT_FALSE(cgroup_cpu_quota(root.path(), "3:cpu,cpuacct:/b\n0::/\n").has_value());
  EXPECT_FALSE(cgroup_cpu_quota(root.path(), "3:cpuset:/a\n").has_value());
  EXPECT_FALSE(cgroup_cpu_quota(root.path(), "nonsense\n::\n").has_value());
  EXPECT_FALSE(cgroup_cpu_quota(root.path(), "").has_value());
}

TEST(CgroupTest, EveryGroupUpToTheRootOnce) {
  std::vector<std::string> folders;
  for_each_cgroup("/r", "4:memory:/a/b\n0::/\n", "memory",
                  [&](const std::string& folder, CgroupVersion) { folders.push_back(folder); });
  EXPECT_EQ(folders, (std::vector<std::string>{"/r/memory/a/b", "/r/memory/a", "/r/memory", "/r"}));
}

}  // namespace
}  // namespace tandem

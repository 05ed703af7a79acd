// Field report 68: threads that straddle two caches. The machines are folders made here, in the form of Linux's /sys.
#include "base/cpu_topology.h"

#include <gtest/gtest.h>

#include "base/cat.h"
#include "support/temp_folder.h"

namespace tandem {
namespace {

using test::TempFolder;

// Two sockets of two CCDs of two cores with two threads each: 16 processors, siblings 8 apart.
void write_machine(const TempFolder& sys) {
  for (int cpu = 0; cpu < 16; ++cpu) {
    const int core = cpu % 8;
    const std::string folder = cat("devices/system/cpu/cpu", cpu);
    const std::string siblings = cat(core, ",", core + 8, "\n");
    sys.write(cat(folder, "/topology/thread_siblings_list"), siblings);
    sys.write(cat(folder, "/cache/index0/level"), "1\n");
    sys.write(cat(folder, "/cache/index0/type"), "Data\n");
    sys.write(cat(folder, "/cache/index0/shared_cpu_list"), siblings);
    sys.write(cat(folder, "/cache/index2/level"), "2\n");
    sys.write(cat(folder, "/cache/index2/type"), "Unified\n");
    sys.write(cat(folder, "/cache/index2/shared_cpu_list"), siblings);
    sys.write(cat(folder, "/cache/index2/size"), "1024K\n");
    const int ccd = core / 2 * 2;
    sys.write(cat(folder, "/cache/index3/level"), "3\n");
    sys.write(cat(folder, "/cache/index3/type"), "Unified\n");
    sys.write(cat(folder, "/cache/index3/shared_cpu_list"), cat(ccd, "-", ccd + 1, ",", ccd + 8, "-", ccd + 9, "\n"));
    sys.write(cat(folder, "/cache/index3/size"), "32M\n");
  }
  sys.write("devices/system/node/node0/cpulist", "0-3,8-11\n");
  sys.write("devices/system/node/node1/cpulist", "4-7,12-15\n");
  sys.write("devices/system/node/online", "0-1\n");
}

TEST(CpuTopologyTest, CpuLists) {
  EXPECT_EQ(parse_cpu_list("0-3,8\n"), (CpuList{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_cpu_list("5"), CpuList{5});
  EXPECT_EQ(parse_cpu_list(""), CpuList{});
  EXPECT_EQ(parse_cpu_list("3,1,1-2"), (CpuList{1, 2, 3}));
  for (const char* wrong : {"a", "1-", "-1", "1,", "3-1", "1;2", "0-99999999", "99999999999999999999"}) {
    EXPECT_EQ(parse_cpu_list(wrong), std::nullopt) << wrong;
  }
  for (const char* text : {"0-3,8", "5", "1,3,5-6", ""}) {
    EXPECT_EQ(cpu_list_text(*parse_cpu_list(text)), text);
  }
}

TEST(CpuTopologyTest, CoresCachesAndNodesOfAMachine) {
  const TempFolder sys;
  write_machine(sys);
  const CpuTopology all = read_cpu_topology(sys.path(), *parse_cpu_list("0-15"));
  EXPECT_EQ(all.cores.size(), 8u);
  EXPECT_EQ(all.cores[3], (CpuList{3, 11}));
  EXPECT_EQ(all.l2.size(), 8u);
  EXPECT_EQ(all.l2_bytes, 1 << 20);
  ASSERT_EQ(all.l3.size(), 4u);
  EXPECT_EQ(cpu_list_text(all.l3[1]), "2-3,10-11");
  EXPECT_EQ(all.l3_bytes, 32 << 20);
  ASSERT_EQ(all.numa_nodes.size(), 2u);
  EXPECT_EQ(cpu_list_text(all.numa_nodes[1]), "4-7,12-15");
}

TEST(CpuTopologyTest, WhatAProcessMayNotUseIsNotThere) {
  const TempFolder sys;
  write_machine(sys);
  const CpuTopology bound = read_cpu_topology(sys.path(), {2, 3, 4});
  EXPECT_EQ(bound.cores, (std::vector<CpuList>{{2}, {3}, {4}}));
  EXPECT_EQ(bound.l3, (std::vector<CpuList>{{2, 3}, {4}}));
  EXPECT_EQ(bound.numa_nodes, (std::vector<CpuList>{{2, 3}, {4}}));
}

TEST(CpuTopologyTest, MissingFilesGiveNoGroups) {
  const TempFolder sys;
  const CpuTopology none = read_cpu_topology(sys.path(), {0, 1});
  EXPECT_EQ(none.allowed, (CpuList{0, 1}));
  EXPECT_TRUE(none.cores.empty() && none.l2.empty() && none.l3.empty() && none.numa_nodes.empty());
  EXPECT_EQ(transparent_huge_pages(sys.path()), "");
}

TEST(CpuTopologyTest, HugePagesAndCpuinfo) {
  const TempFolder sys;
  sys.write("kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  EXPECT_EQ(transparent_huge_pages(sys.path()), "madvise");
  const CpuModel model =
      parse_cpuinfo("processor\t: 0\nmodel name\t: Some CPU @ 2.0\nflags\t\t: fpu avx2 avx512f\n\nflags\t: other\n");
  EXPECT_EQ(model.name, "Some CPU @ 2.0");
  EXPECT_TRUE(model.has("avx2") && model.has("avx512f") && model.has("fpu"));
  EXPECT_FALSE(model.has("avx") || model.has("other"));
  EXPECT_TRUE(parse_cpuinfo("").flags.empty());
}

TEST(CpuTopologyTest, ThisProcessRunsSomewhere) { EXPECT_FALSE(allowed_cpus().empty()); }

}  // namespace
}  // namespace tandem

// Field report 68: threads that straddle two caches run slower. Where threads go, for machines of several shapes.
#include "base/thread_placement.h"

#include <gmock/gmock.h>
#include <sched.h>

#include <atomic>
#include <thread>

#include "base/thread_pool.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

CpuTopology laptop() {  // four cores, two threads each, one cache
  return {.allowed = {0, 1, 2, 3, 4, 5, 6, 7},
          .cores = {{0, 1}, {2, 3}, {4, 5}, {6, 7}},
          .l2 = {},
          .l3 = {{0, 1, 2, 3, 4, 5, 6, 7}},
          .l2_bytes = 0,
          .l3_bytes = 0,
          .numa_nodes = {{0, 1, 2, 3, 4, 5, 6, 7}}};
}

CpuTopology server() {  // two nodes of two caches of two cores of two threads; siblings are 8 apart
  return {.allowed = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
          .cores = {{0, 8}, {1, 9}, {2, 10}, {3, 11}, {4, 12}, {5, 13}, {6, 14}, {7, 15}},
          .l2 = {},
          .l3 = {{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}},
          .l2_bytes = 0,
          .l3_bytes = 0,
          .numa_nodes = {{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}}};
}

ThreadPlacement place(const CpuTopology& topology, std::optional<double> quota, const ThreadWish& wish) {
  const Result<ThreadPlacement> placement = place_threads(topology, quota, wish);
  EXPECT_TRUE(placement.is_ok()) << placement.status().message();
  return placement.is_ok() ? placement.value() : ThreadPlacement{};
}

TEST(ThreadPlacementTest, OneThreadACoreAndTheSchedulerChoosesOnOneCache) {
  const ThreadPlacement placement = place(laptop(), std::nullopt, {});
  EXPECT_EQ(placement.num_threads, 4);
  EXPECT_THAT(placement.cpus, IsEmpty());
  EXPECT_EQ(place(laptop(), std::nullopt, {.num_threads = 8, .cpus = {}}).num_threads, 8);
  EXPECT_EQ(place(laptop(), std::nullopt, {.num_threads = 64, .cpus = {}}).num_threads, 64);  // as the user wants
}

TEST(ThreadPlacementTest, AQuotaBoundsTheThreads) {
  EXPECT_EQ(place(laptop(), 2.5, {}).num_threads, 2);
  EXPECT_EQ(place(laptop(), 0.3, {}).num_threads, 1);
  EXPECT_EQ(place(laptop(), 1e9, {}).num_threads, 4);
  EXPECT_EQ(place(laptop(), 2.5, {.num_threads = 6, .cpus = {}}).num_threads, 6);
}

TEST(ThreadPlacementTest, ThreadsFillOneCacheAfterTheOther) {
  EXPECT_THAT(place(server(), std::nullopt, {}).cpus, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(place(server(), std::nullopt, {.num_threads = 2, .cpus = {}}).cpus, ElementsAre(0, 1));
  EXPECT_THAT(place(server(), std::nullopt, {.num_threads = 10, .cpus = {}}).cpus,
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_THAT(place(server(), std::nullopt, {.num_threads = 40, .cpus = {}}).cpus, IsEmpty());
  CpuTopology part = server();  // started under taskset: both threads of one core, one of another node
  part.allowed = {3, 4, 11};
  part.cores = {{3, 11}, {4}};
  part.l3 = {{3, 11}, {4}};
  part.numa_nodes = {{3, 11}, {4}};
  const ThreadPlacement placement = place(part, std::nullopt, {});
  EXPECT_EQ(placement.num_threads, 2);
  EXPECT_THAT(placement.cpus, ElementsAre(3, 4));
}

TEST(ThreadPlacementTest, AMachineThatSaysNothing) {
  CpuTopology bare;
  bare.allowed = {0, 1, 2};
  EXPECT_EQ(place(bare, std::nullopt, {}).num_threads, 3);
  EXPECT_EQ(place(CpuTopology{}, std::nullopt, {}).num_threads, 1);
}

TEST(ThreadPlacementTest, AskedForProcessors) {
  const ThreadPlacement placement = place(laptop(), 1.0, {.num_threads = {}, .cpus = CpuList{2, 5, 7}});
  EXPECT_EQ(placement.num_threads, 3);
  EXPECT_THAT(placement.cpus, ElementsAre(2, 5, 7));
  EXPECT_THAT(place(laptop(), std::nullopt, {.num_threads = 2, .cpus = CpuList{2, 5, 7}}).cpus, ElementsAre(2, 5));
  const auto refusal = [](const ThreadWish& wish) {
    return std::string(place_threads(laptop(), std::nullopt, wish).status().message());
  };
  EXPECT_THAT(refusal({.num_threads = {}, .cpus = CpuList{0, 9}}), HasSubstr("processor 9: expected one that"));
  EXPECT_THAT(refusal({.num_threads = 3, .cpus = CpuList{0, 1}}), HasSubstr("3 threads on 2 processors (0-1)"));
  EXPECT_THAT(refusal({.num_threads = {}, .cpus = CpuList{}}), HasSubstr("expected at least one"));
}

// The workers of a pool run where they are bound; the caller stays free.
TEST(ThreadPlacementTest, APoolBindsItsWorkers) {
  const CpuList allowed = allowed_cpus();
  const int last = allowed.back();
  ThreadPool pool(2, std::vector<int>{allowed.front(), last});
  std::atomic<int> wrong = 0, by_worker = 0;
  for (int round = 0; round < 200 && by_worker == 0; ++round) {
    pool.parallel_for(64, [&](int64_t, int thread) {
      if (thread == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
        return;
      }
      ++by_worker;
      wrong += sched_getcpu() != last;
    });
  }
  EXPECT_GT(by_worker, 0);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(allowed_cpus(), allowed);
}

}  // namespace
}  // namespace tandem

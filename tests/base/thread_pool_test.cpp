#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace tandem {
namespace {

using std::chrono::milliseconds;

// Long enough for a worker to give up spinning and sleep, on a slow machine too.
constexpr auto kUntilAsleep = milliseconds(30);

TEST(ThreadPool, EveryTaskRunsOnceByAMemberOfTheTeam) {
  for (const int num_threads : {1, 2, 3, 8}) {
    ThreadPool pool(num_threads);
    EXPECT_EQ(pool.num_threads(), num_threads);
    for (const int64_t num_tasks : {0, 1, 2, 3, 7, 8, 9, 1000}) {
      std::vector<int> runs(static_cast<size_t>(num_tasks), 0);
      std::vector<int> by(static_cast<size_t>(num_tasks), -1);
      pool.parallel_for(num_tasks, [&](int64_t task, int thread) {
        ++runs[static_cast<size_t>(task)];
        by[static_cast<size_t>(task)] = thread;
      });
      for (size_t task = 0; task < runs.size(); ++task) {
        ASSERT_EQ(runs[task], 1) << "task " << task << " of " << num_tasks << ", " << num_threads << " threads";
        ASSERT_GE(by[task], 0);
        ASSERT_LT(by[task], num_threads);
      }
    }
  }
}

TEST(ThreadPool, NoTasksIsNoWork) {
  ThreadPool pool(2);
  pool.parallel_for(0, [](int64_t, int) { FAIL(); });
  pool.parallel_for(-5, [](int64_t, int) { FAIL(); });
}

TEST(ThreadPool, AThreadIndexIsHeldByOneTaskAtATime) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<bool> shared = false;
  pool.parallel_for(2000, [&](int64_t, int thread) {
    if (inside[static_cast<size_t>(thread)].fetch_add(1) != 0) shared = true;
    inside[static_cast<size_t>(thread)].fetch_sub(1);
  });
  EXPECT_FALSE(shared);
}

TEST(ThreadPool, WritesOfALoopAreSeenAfterItAndByTheNext) {
  ThreadPool pool(3);
  std::vector<int64_t> a(257, 0), b(257, 0);
  for (int64_t round = 1; round <= 200; ++round) {
    pool.parallel_for(257, [&](int64_t task, int) { a[static_cast<size_t>(task)] += task + round; });
    pool.parallel_for(257,
                      [&](int64_t task, int) { b[static_cast<size_t>(task)] = a[256 - static_cast<size_t>(task)]; });
    ASSERT_EQ(std::accumulate(a.begin(), a.end(), int64_t{0}), std::accumulate(b.begin(), b.end(), int64_t{0}));
  }
  EXPECT_EQ(a[256], 200 * 256 + 200 * 201 / 2);
}

TEST(ThreadPool, UnevenTasksAreShared) {
  ThreadPool pool(2);
  std::vector<int> by(64, -1);
  // Task 0 holds one thread until the other has done the rest: a fixed split in halves would never finish.
  std::atomic<int> others = 0;
  pool.parallel_for(64, [&](int64_t task, int thread) {
    by[static_cast<size_t>(task)] = thread;
    if (task == 0) {
      while (others.load() != 63) std::this_thread::yield();
    } else {
      others.fetch_add(1);
    }
  });
  for (size_t task = 1; task < by.size(); ++task) EXPECT_NE(by[task], by[0]) << task;
}

TEST(ThreadPool, AHundredThousandSmallLoops) {
  ThreadPool pool(2);
  std::vector<int64_t> sums(2, 0);  // one a task: no two tasks of a loop write the same
  for (int round = 0; round < 100000; ++round) {
    pool.parallel_for(2, [&](int64_t task, int) { sums[static_cast<size_t>(task)] += task + 1; });
  }
  EXPECT_EQ(sums[0], 100000);
  EXPECT_EQ(sums[1], 200000);
}

TEST(ThreadPool, SleepingWorkersWake) {
  ThreadPool pool(4);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(kUntilAsleep);
    std::atomic<int> count = 0;
    pool.parallel_for(16, [&](int64_t, int) { count.fetch_add(1); });
    ASSERT_EQ(count.load(), 16);
  }
}

TEST(ThreadPool, LoopsAtTheEdgeOfSleepAreNotLost) {
  ThreadPool pool(3);
  std::atomic<int64_t> count = 0;
  // Pauses around the spin limit, so that some loops start while a worker is on its way to sleep.
  for (int round = 0; round < 400; ++round) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(5 * (round % 100));
    while (std::chrono::steady_clock::now() < until) {
    }
    pool.parallel_for(6, [&](int64_t, int) { count.fetch_add(1, std::memory_order_relaxed); });
  }
  EXPECT_EQ(count.load(), 2400);
}

TEST(ThreadPool, DestroyedSpinningAsleepOrUnused) {
  for (int round = 0; round < 20; ++round) ThreadPool unused(3);
  for (int round = 0; round < 20; ++round) {
    ThreadPool spinning(3);
    spinning.parallel_for(3, [](int64_t, int) {});
  }
  ThreadPool asleep(3);
  asleep.parallel_for(3, [](int64_t, int) {});
  std::this_thread::sleep_for(kUntilAsleep);
}

TEST(ThreadPoolDeathTest, ANestedLoopAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto nest = [](int num_threads, int64_t num_tasks) {
    ThreadPool pool(num_threads);
    pool.parallel_for(num_tasks, [&](int64_t, int) { pool.parallel_for(1, [](int64_t, int) {}); });
  };
  EXPECT_DEATH(nest(1, 1), "parallel_for from a task");
  EXPECT_DEATH(nest(2, 8), "parallel_for from a task");
}

TEST(ThreadPoolDeathTest, ATeamHasAtLeastTheCaller) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(ThreadPool(0), "at least the calling thread");
}

}  // namespace
}  // namespace tandem

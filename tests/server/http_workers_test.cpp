#include "server/http_workers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "support/effort.h"

namespace tandem {
namespace {

void ignore(const std::string&) {}

TEST(HttpWorkers, ATaskThatWaitsForALaterOneDoesNotKeepItFromRunning) {
  // Both are queued while nobody runs: the one wake that they get must lead to a second.
  HttpWorkers workers(2, ignore);
  for (int64_t i = 0; i < test::effort(200); ++i) {
    std::promise<void> later;
    std::promise<void> done;
    ASSERT_TRUE(workers.run([&] {
      later.get_future().wait();
      done.set_value();
    }));
    ASSERT_TRUE(workers.run([&] { later.set_value(); }));
    done.get_future().wait();
  }
}

TEST(HttpWorkers, EveryTaskOfManyThreadsRunsOnce) {
  constexpr int kThreads = 4;
  const int64_t each = 50 * test::effort(20);
  std::vector<std::atomic<int>> runs(static_cast<size_t>(kThreads * each));
  {
    HttpWorkers workers(3, ignore);
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int64_t i = 0; i < each; ++i) {
          EXPECT_TRUE(workers.run([&run = runs[static_cast<size_t>(t * each + i)]] { ++run; }));
          if (i % 16 == 15) std::this_thread::yield();  // bursts, and workers that fall asleep between them
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  for (const auto& run : runs) ASSERT_EQ(run.load(), 1);
}

TEST(HttpWorkers, TasksOfOneOwnerKeepTheirOrder) {
  auto workers = std::make_shared<HttpWorkers>(3, ignore);
  std::vector<std::shared_ptr<SerialTasks>> owners;
  const int64_t each = 20 * test::effort(20);
  std::vector<std::vector<int64_t>> seen(8);
  for (size_t o = 0; o < seen.size(); ++o) owners.push_back(std::make_shared<SerialTasks>(workers));
  for (int64_t i = 0; i < each; ++i) {
    for (size_t o = 0; o < seen.size(); ++o) {
      owners[o]->post([&seen, o, i] { seen[o].push_back(i); });
    }
  }
  // The last task of each owner follows all others of it.
  for (size_t o = 0; o < seen.size(); ++o) {
    std::promise<void> done;
    owners[o]->post([&] { done.set_value(); });
    done.get_future().wait();
  }
  workers->stop();
  for (const auto& order : seen) {
    ASSERT_EQ(order.size(), static_cast<size_t>(each));
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  }
}

}  // namespace
}  // namespace tandem

#include "base/thread_pool.h"

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tandem {
namespace {

// About 50 microseconds on a 3 GHz core: longer than the serial stretches between the loops of a decode step.
constexpr int kSpinRounds = 20000;

void spin_pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  TANDEM_CHECK(num_threads >= 1, "a thread pool has at least the calling thread");
  workers_.reserve(static_cast<size_t>(num_threads - 1));
  for (int thread = 1; thread < num_threads; ++thread) workers_.emplace_back([this, thread] { worker_loop(thread); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mu_);
    stop_.store(true);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_tasks(const Job& job, int thread) {
  for (int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed); task < job.num_tasks;
       task = next_task_.fetch_add(1, std::memory_order_relaxed)) {
    (*job.body)(task, thread);
  }
}

void ThreadPool::worker_loop(int thread) {
  uint64_t seen = 0;
  while (true) {
    int rounds = 0;
    while (generation_.load(std::memory_order_acquire) == seen && rounds < kSpinRounds) {
      spin_pause();
      ++rounds;
    }
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mu_);
      sleepers_.fetch_add(1);  // seq_cst with generation_: the caller sees the sleeper or the sleeper the loop
      wake_.wait(lock, [&] { return generation_.load() != seen; });
      sleepers_.fetch_sub(1);
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    run_tasks(job_, thread);
    busy_workers_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::parallel_for(int64_t num_tasks, FunctionRef<void(int64_t, int)> body) {
  if (num_tasks <= 0) return;
  if (workers_.empty() || num_tasks == 1) {
    for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
    return;
  }
  job_ = Job{&body, num_tasks};
  next_task_.store(0, std::memory_order_relaxed);
  busy_workers_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1);
  if (sleepers_.load() > 0) {
    { const std::lock_guard lock(mu_); }  // a worker between its test and its wait has the lock: let it sleep first
    wake_.notify_all();
  }
  run_tasks(job_, 0);
  // Every worker reports, even one that found no task: job_ must not change under a late reader.
  for (int rounds = 0; busy_workers_.load(std::memory_order_acquire) != 0; ++rounds) {
    if (rounds < kSpinRounds) {
      spin_pause();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace tandem

#include "base/thread_pool.h"

#include <chrono>

#include "base/check.h"
#include "base/thread_placement.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tandem {
namespace {

// Longer than the serial stretches between the loops of a decode step, short enough to be polite on a shared machine.
constexpr std::chrono::microseconds kSpinTime{50};
constexpr int kPausesPerClockRead = 16;

void spin_pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Spins until `done` or for kSpinTime; returns whether `done` came. (A pause takes 10 to 140 cycles, so time it.)
template <class Done>
bool spin_until(Done done) {
  if (done()) return true;
  const auto give_up = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      spin_pause();
      if (done()) return true;
    }
  } while (std::chrono::steady_clock::now() < give_up);
  return false;
}

}  // namespace

ThreadPool::ThreadPool(int num_threads, std::span<const int> cpus) {
  TANDEM_CHECK(num_threads >= 1, "a thread pool has at least the calling thread");
  workers_.reserve(static_cast<size_t>(num_threads - 1));
  for (int thread = 1; thread < num_threads; ++thread) {
    const auto index = static_cast<size_t>(thread);
    const int cpu = index < cpus.size() ? cpus[index] : -1;
    workers_.emplace_back([this, thread, cpu] {
      if (cpu >= 0) bind_this_thread(cpu);
      worker_loop(thread);
    });
  }
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

void ThreadPool::run_tasks(const Job& job, int thread) noexcept {
  for (int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed); task < job.num_tasks;
       task = next_task_.fetch_add(1, std::memory_order_relaxed)) {
    (*job.body)(task, thread);
  }
}

bool ThreadPool::try_join() {
  uint32_t seen = loop_.load(std::memory_order_relaxed);
  while ((seen & kOpen) != 0) {
    if (loop_.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire, std::memory_order_relaxed)) return true;
  }
  return false;
}

void ThreadPool::worker_loop(int thread) noexcept {
  uint64_t seen = 0;
  while (true) {
    const auto is_news = [&] { return generation_.load(std::memory_order_acquire) != seen; };
    if (!spin_until(is_news)) {
      std::unique_lock lock(mu_);
      sleepers_.fetch_add(1);  // seq_cst with generation_: the caller sees the sleeper or the sleeper the loop
      wake_.wait(lock, [&] { return generation_.load() != seen; });
      sleepers_.fetch_sub(1);
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    if (!try_join()) continue;  // over before this thread arrived
    run_tasks(job_, thread);
    loop_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::parallel_for(int64_t num_tasks, FunctionRef<void(int64_t, int)> body) noexcept {
  if (num_tasks <= 0) return;
  TANDEM_CHECK(!in_loop_.exchange(true, std::memory_order_acquire), "parallel_for from a task or from a second thread");
  if (workers_.empty() || num_tasks == 1) {
    for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
  } else {
    run_team(num_tasks, body);
  }
  in_loop_.store(false, std::memory_order_release);
}

void ThreadPool::run_team(int64_t num_tasks, FunctionRef<void(int64_t, int)>& body) noexcept {
  job_ = Job{&body, num_tasks};
  next_task_.store(0, std::memory_order_relaxed);
  loop_.store(kOpen, std::memory_order_release);
  generation_.fetch_add(1);
  if (sleepers_.load() > 0) {
    { const std::lock_guard lock(mu_); }  // a worker between its test and its wait has the lock: let it sleep first
    wake_.notify_all();
  }
  run_tasks(job_, 0);
  loop_.fetch_and(~kOpen, std::memory_order_relaxed);
  const auto is_empty = [&] { return loop_.load(std::memory_order_acquire) == 0; };
  while (!spin_until(is_empty)) std::this_thread::yield();  // more threads than cores: let the last task run
}

}  // namespace tandem

// base/thread_pool.h: a fixed team of threads for fork-join loops; the caller is member 0 of the team.
//
// Tasks are handed out one at a time from a shared counter, so uneven tasks balance. Which thread runs a task never
// changes its result: a task writes only what it owns. The caller starts at once and waits only for members that have
// joined: one that sleeps, or that the system runs elsewhere, costs its help and nothing else. Workers spin briefly
// after a loop, then sleep, so that back-to-back loops of a decode step cost no system call and an idle engine costs no
// CPU. Threading: parallel_for may be called by one thread at a time (the engine thread), never from a task; it aborts
// otherwise, whatever the number of threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/function_ref.h"

namespace tandem {

class ThreadPool {
 public:
  // num_threads counts the calling thread; at least 1. `cpus`: member i > 0 is bound to cpus[i] (thread_placement.h);
  // fewer entries bind fewer members. The caller binds itself.
  explicit ThreadPool(int num_threads, std::span<const int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs body(task, thread) for every task in [0, num_tasks); returns when all have finished.
  // `thread` is in [0, num_threads()): an index for per-thread scratch.
  // A body does not throw: an exception that reaches the pool ends the program.
  void parallel_for(int64_t num_tasks, FunctionRef<void(int64_t task, int thread)> body) noexcept;

 private:
  struct Job {
    FunctionRef<void(int64_t, int)>* body = nullptr;
    int64_t num_tasks = 0;
  };

  void run_team(int64_t num_tasks, FunctionRef<void(int64_t, int)>& body) noexcept;
  void worker_loop(int thread) noexcept;
  void run_tasks(const Job& job, int thread) noexcept;

  bool try_join();

  // The loop on offer: kOpen plus the number of workers inside. A worker joins only while it is open; the caller closes
  // it when no task is left and changes job_ only when it is closed and empty.
  static constexpr uint32_t kOpen = 0x80000000u;

  Job job_;  // written before the loop opens
  alignas(64) std::atomic<int64_t> next_task_{0};
  alignas(64) std::atomic<uint32_t> loop_{0};
  alignas(64) std::atomic<uint64_t> generation_{0};  // one more for every loop: what idle workers watch
  std::atomic<bool> stop_{false};
  std::atomic<int> sleepers_{0};
  alignas(64) std::atomic<bool> in_loop_{false};  // catches a nested or a concurrent parallel_for
  std::mutex mu_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace tandem

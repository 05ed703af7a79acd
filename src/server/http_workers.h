// server/http_workers.h: threads that run handlers, apart from those that move bytes; and order among the tasks of one
// exchange. Any thread. Tasks throw nothing; what a library throws in one is caught and reported.
//
//   Who queues tasks wakes at most one worker, and none while one is on its way: an engine that queues a task for each
//   reply of a step pays for one system call. A worker that leaves tasks behind wakes the next.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tandem {

class HttpWorkers {
 public:
  // `on_problem` hears of exceptions, on the worker's thread.
  HttpWorkers(int num_threads, std::function<void(const std::string&)> on_problem);
  ~HttpWorkers();  // as stop()

  // False when stopped; the task is then dropped.
  bool run(std::function<void()> task);
  // Runs what is queued, takes no more, joins. Not from a worker.
  void stop();

 private:
  void work();
  bool take_wake_locked();  // true: the caller wakes a worker

  std::function<void(const std::string&)> on_problem_;
  std::mutex mu_;
  std::condition_variable has_task_;
  std::deque<std::function<void()>> tasks_;  // guarded by mu_
  bool is_stopped_ = false;                  // guarded by mu_
  int num_idle_ = 0;                         // workers that wait; guarded by mu_
  bool is_waking_ = false;                   // one of them was notified and has not come yet; guarded by mu_
  std::vector<std::thread> threads_;
};

// Tasks that run one after another, on whichever worker is free. Shared by those who post and by the worker that runs.
class SerialTasks : public std::enable_shared_from_this<SerialTasks> {
 public:
  // The workers are shared: an exchange may outlive the server, and its tasks are then dropped.
  explicit SerialTasks(std::shared_ptr<HttpWorkers> workers) : workers_(std::move(workers)) {}
  void post(std::function<void()> task);

 private:
  void run_one();
  void schedule();

  std::shared_ptr<HttpWorkers> workers_;
  std::mutex mu_;
  std::deque<std::function<void()>> tasks_;  // guarded by mu_
  bool is_scheduled_ = false;                // guarded by mu_
};

}  // namespace tandem

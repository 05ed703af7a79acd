#include "server/http_workers.h"

#include <exception>
#include <utility>

namespace tandem {

HttpWorkers::HttpWorkers(int num_threads, std::function<void(const std::string&)> on_problem)
    : on_problem_(std::move(on_problem)) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
}

HttpWorkers::~HttpWorkers() { stop(); }

bool HttpWorkers::run(std::function<void()> task) {
  {
    const std::lock_guard lock(mu_);
    if (is_stopped_) return false;
    tasks_.push_back(std::move(task));
    if (!take_wake_locked()) return true;
  }
  has_task_.notify_one();
  return true;
}

bool HttpWorkers::take_wake_locked() {
  if (tasks_.empty() || num_idle_ == 0 || is_waking_) return false;
  is_waking_ = true;
  return true;
}

void HttpWorkers::stop() {
  {
    const std::lock_guard lock(mu_);
    is_stopped_ = true;
  }
  has_task_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void HttpWorkers::work() {
  for (;;) {
    std::function<void()> task;
    bool must_wake = false;
    {
      std::unique_lock lock(mu_);
      while (!is_stopped_ && tasks_.empty()) {
        ++num_idle_;
        has_task_.wait(lock);
        --num_idle_;
        is_waking_ = false;
      }
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      must_wake = take_wake_locked();
    }
    if (must_wake) has_task_.notify_one();
    try {
      task();
    } catch (const std::exception& problem) {
      on_problem_(problem.what());
    } catch (...) {
      on_problem_("an exception of unknown type");
    }
  }
}

void SerialTasks::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mu_);
    tasks_.push_back(std::move(task));
    if (std::exchange(is_scheduled_, true)) return;
  }
  schedule();
}

void SerialTasks::schedule() {
  if (workers_->run([self = shared_from_this()] { self->run_one(); })) return;
  // Stopped: nothing runs any more, and what the tasks hold is let go.
  std::deque<std::function<void()>> dropped;
  const std::lock_guard lock(mu_);
  dropped.swap(tasks_);
  is_scheduled_ = false;
}

// One task a turn: a busy exchange does not keep a worker from the others.
void SerialTasks::run_one() {
  std::function<void()> task;
  {
    const std::lock_guard lock(mu_);
    task = std::move(tasks_.front());
    tasks_.pop_front();
  }
  // The next is scheduled even when this one throws.
  struct Next {
    SerialTasks& tasks;
    ~Next() {
      {
        const std::lock_guard lock(tasks.mu_);
        tasks.is_scheduled_ = !tasks.tasks_.empty();
        if (!tasks.is_scheduled_) return;
      }
      tasks.schedule();
    }
  } next{*this};
  task();
  task = nullptr;  // what it holds is let go before the next task runs
}

}  // namespace tandem

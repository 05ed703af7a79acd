#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "stream/read_backend.h"

namespace tandem {
namespace {

class ThreadBackend final : public ReadBackend {
 public:
  explicit ThreadBackend(unsigned num_threads) {
    threads_.reserve(num_threads);
    for (unsigned i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ThreadBackend(const ThreadBackend&) = delete;
  ThreadBackend& operator=(const ThreadBackend&) = delete;
  ~ThreadBackend() override {
    {
      const std::lock_guard lock(mu_);
      stop_ = true;
      queue_.clear();
    }
    has_work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::string_view name() const override { return "threads"; }

  void start(uint32_t id, int fd, uint64_t offset, void* memory, uint64_t num_bytes) override {
    {
      const std::lock_guard lock(mu_);
      queue_.push_back({id, fd, offset, memory, num_bytes});
    }
    has_work_.notify_one();
  }

  void flush() override {}

  void collect(double wait_seconds, std::vector<std::pair<uint32_t, int64_t>>& results) override {
    std::unique_lock lock(mu_);
    if (answers_.empty() && wait_seconds > 0.0) {
      has_answer_.wait_for(lock, std::chrono::duration<double>(wait_seconds), [this] { return !answers_.empty(); });
    }
    results.insert(results.end(), answers_.begin(), answers_.end());
    answers_.clear();
  }

 private:
  struct Read {
    uint32_t id = 0;
    int fd = -1;
    uint64_t offset = 0;
    void* memory = nullptr;
    uint64_t num_bytes = 0;
  };

  void work() {
    std::unique_lock lock(mu_);
    while (true) {
      has_work_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      const Read read = queue_.front();
      queue_.pop_front();
      lock.unlock();
      const ssize_t got = ::pread(read.fd, read.memory, read.num_bytes, static_cast<off_t>(read.offset));
      const int64_t result = got >= 0 ? got : -int64_t{errno};
      lock.lock();
      answers_.emplace_back(read.id, result);
      has_answer_.notify_one();
    }
  }

  std::mutex mu_;
  std::condition_variable has_work_, has_answer_;
  std::deque<Read> queue_;                             // guarded by mu_
  std::vector<std::pair<uint32_t, int64_t>> answers_;  // guarded by mu_
  bool stop_ = false;                                  // guarded by mu_
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<ReadBackend> make_thread_backend(unsigned num_threads) {
  return std::make_unique<ThreadBackend>(num_threads);
}

}  // namespace tandem

// train/run/batch_prefetcher.h: prepares the batches of the next steps in a thread of its own, in order.
//
//   What a batch holds depends on its step alone, so the result is the same with or without the thread.
//   Threading: next() from one thread; the data outlive this.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "train/run/step_batch.h"

namespace tandem::train {

class BatchPrefetcher {
 public:
  static constexpr size_t kDepth = 2;

  // Batches of the steps [first_step, data.order().num_steps()).
  BatchPrefetcher(const RunData& data, int64_t first_step, const BatchOptions& options);
  ~BatchPrefetcher();
  BatchPrefetcher(const BatchPrefetcher&) = delete;
  BatchPrefetcher& operator=(const BatchPrefetcher&) = delete;

  // Not called more often than there are steps, nor after an error.
  Result<StepBatch> next();

 private:
  void run(int64_t first_step);

  const RunData& data_;
  BatchOptions options_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Result<StepBatch>> ready_;  // guarded by mu_
  bool stopping_ = false;                // guarded by mu_
  std::thread thread_;
};

}  // namespace tandem::train

#include "train/run/batch_prefetcher.h"

#include <exception>
#include <utility>

#include "base/cat.h"

namespace tandem::train {
namespace {

// The library's exceptions end at the thread's entry.
Result<StepBatch> prepare(const RunData& data, int64_t step, const BatchOptions& options) {
  try {
    return make_step_batch(data, step, options);
  } catch (const std::exception& error) {
    return Status::exhausted(cat("preparing the batch of step ", step + 1, ": ", error.what()));
  }
}

}  // namespace

BatchPrefetcher::BatchPrefetcher(const RunData& data, int64_t first_step, const BatchOptions& options)
    : data_(data), options_(options), thread_([this, first_step] { run(first_step); }) {}

BatchPrefetcher::~BatchPrefetcher() {
  {
    const std::lock_guard lock(mu_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BatchPrefetcher::run(int64_t first_step) {
  for (int64_t step = first_step; step < data_.order().num_steps(); ++step) {
    Result<StepBatch> batch = prepare(data_, step, options_);
    const bool failed = !batch.is_ok();
    std::unique_lock lock(mu_);
    changed_.wait(lock, [this] { return stopping_ || ready_.size() < kDepth; });
    if (stopping_) return;
    ready_.push_back(std::move(batch));
    changed_.notify_all();
    if (failed) return;
  }
}

Result<StepBatch> BatchPrefetcher::next() {
  std::unique_lock lock(mu_);
  changed_.wait(lock, [this] { return !ready_.empty(); });
  Result<StepBatch> batch = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  return batch;
}

}  // namespace tandem::train

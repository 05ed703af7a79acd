// sched/waiting_queue.h: sequences without memory, by cost class, each class in rank order. Owns nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "sched/sequence.h"

namespace tandem {

class WaitingQueue {
 public:
  WaitingQueue(int64_t num_classes, int64_t capacity);  // up to `capacity` sequences nothing is allocated

  void push(Sequence* sequence);
  void remove(const Sequence* sequence);      // a member
  Sequence* front(int64_t cost_class) const;  // null: none waits
  int64_t size() const { return size_; }
  int64_t size(int64_t cost_class) const { return static_cast<int64_t>(by_class_[cost_class].size()); }

 private:
  std::vector<std::vector<Sequence*>> by_class_;  // last: the first in rank order
  int64_t size_ = 0;
};

}  // namespace tandem

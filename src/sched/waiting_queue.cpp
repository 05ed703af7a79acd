#include "sched/waiting_queue.h"

#include <algorithm>

#include "base/check.h"

namespace tandem {

WaitingQueue::WaitingQueue(int64_t num_classes, int64_t capacity) : by_class_(num_classes) {
  for (auto& members : by_class_) members.reserve(capacity);
}

void WaitingQueue::push(Sequence* sequence) {
  auto& members = by_class_[*sequence->cost_class];
  const auto place = std::lower_bound(members.begin(), members.end(), sequence,
                                      [](const Sequence* a, const Sequence* b) { return ranks_before(*b, *a); });
  members.insert(place, sequence);
  ++size_;
}

void WaitingQueue::remove(const Sequence* sequence) {
  auto& members = by_class_[*sequence->cost_class];
  const auto place = std::find(members.begin(), members.end(), sequence);
  TANDEM_CHECK(place != members.end(), "a waiting sequence is in its class's queue");
  members.erase(place);
  --size_;
}

Sequence* WaitingQueue::front(int64_t cost_class) const {
  const auto& members = by_class_[cost_class];
  return members.empty() ? nullptr : members.back();
}

}  // namespace tandem

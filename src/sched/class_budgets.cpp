#include "sched/class_budgets.h"

#include <algorithm>

namespace tandem {
namespace {

constexpr double kSmallestShare = 1e-3;  // no class waits for ever

}  // namespace

ClassBudgets::ClassBudgets(const std::vector<CostClass>& classes) {
  double sum = 0;
  for (const CostClass& c : classes) {
    const double share = std::max(c.share, kSmallestShare);
    sum += share;
    classes_.push_back({c.max_uncached_tokens, share, 0});
  }
  if (classes_.empty()) {
    classes_.push_back({INT64_MAX, 1, 0});
    sum = 1;
  }
  for (Class& c : classes_) c.share /= sum;
}

int64_t ClassBudgets::classify(int64_t uncached_tokens) const {
  int64_t i = 0;
  while (i + 1 < size() && uncached_tokens > classes_[i].max_uncached_tokens) ++i;
  return i;
}

// The virtual times of the classes served in a step ascend, so a class that had to wait for rows alone is not behind.
void ClassBudgets::start_step() {
  for (Class& c : classes_) c.virtual_time = std::max(c.virtual_time, now_);
}

void ClassBudgets::charge(int64_t cost_class, int64_t tokens) {
  Class& c = classes_[cost_class];
  now_ = std::max(now_, c.virtual_time);
  c.virtual_time += static_cast<double>(tokens) / c.share;
}

bool ClassBudgets::is_within_share(int64_t cost_class, int64_t blocks, int64_t blocks_total) const {
  return static_cast<double>(blocks) <= classes_[cost_class].share * static_cast<double>(blocks_total);
}

}  // namespace tandem

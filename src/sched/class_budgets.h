// sched/class_budgets.h: what cost classes are owed of prefill tokens and of blocks, so that a burst of one exhausts
// only its own share.
//
//   Tokens   start-time fair queueing (Goyal, Vin, Cheng 1996): each class has a virtual time that advances by tokens /
//            share; of those that can compute something the one furthest behind goes first. A class with nothing to
//            compute lends its share and has it back with its next request.
//   Blocks   a class is within its share while its sequences' own blocks are; one sequence always is, or a class whose
//            share is less than a request could never run. Beyond it, only what no class within its share waits for.
#pragma once

#include <cstdint>
#include <vector>

#include "sched/scheduler.h"

namespace tandem {

class ClassBudgets {
 public:
  explicit ClassBudgets(const std::vector<CostClass>& classes);  // none: one class of everything

  int64_t size() const { return static_cast<int64_t>(classes_.size()); }
  int64_t classify(int64_t uncached_tokens) const;

  // Before a step: who was not served although behind keeps no credit, having had nothing to compute or no room.
  void start_step();
  double virtual_time(int64_t cost_class) const { return classes_[cost_class].virtual_time; }
  void charge(int64_t cost_class, int64_t tokens);

  bool is_within_share(int64_t cost_class, int64_t blocks, int64_t blocks_total) const;

 private:
  struct Class {
    int64_t max_uncached_tokens = 0;
    double share = 0;  // of all: the shares add up to 1
    double virtual_time = 0;
  };
  std::vector<Class> classes_;
  double now_ = 0;  // virtual time of the class served last
};

}  // namespace tandem

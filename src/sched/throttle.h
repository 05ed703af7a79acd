// sched/throttle.h: how many sequences may run, from what the pool shows: contexts grow for hours, so a fixed number
// is too small early or too large late.
//
//   U > high, or a preemption in the last steps   the limit is 0.8 of those running; again only when they are as few
//   U < low, somebody waits, no such pressure     + 5 %, at least 1, a step
//   between, somebody waits                       + 1 every kProbeSteps, so that a long sequence alone at such a
//                                                 level does not keep the others out for all its life
//   Source: systems.md §3.4.
#pragma once

#include <cstdint>

namespace tandem {

struct ThrottleSignals {
  double utilisation = 0;      // of blocks: neither free nor evictable
  int64_t running = 0;         // sequences
  int64_t queued = 0;          // waiting and swapped
  bool has_preempted = false;  // in the last step
};

class Throttle {
 public:
  Throttle(double high_utilisation, double low_utilisation, int64_t max_running);

  void update(const ThrottleSignals& signals);  // once a step
  int64_t limit() const { return limit_; }      // in [1, max_running]

  static constexpr int64_t kPressureSteps = 16;  // a preemption is felt for so long
  static constexpr int64_t kProbeSteps = 64;

 private:
  double high_utilisation_;
  double low_utilisation_;
  int64_t max_running_;
  int64_t limit_;
  int64_t steps_since_preemption_ = kPressureSteps;
  int64_t calm_steps_ = 0;
};

}  // namespace tandem

// sched/scheduler_impl.h: the scheduler's state and the steps of a plan.
//
//   A sequence is in exactly one place: queue_ (kWaiting, no blocks), running_ (kRunning, blocks) or swapped_
//   (kSwapped, kept outside the pool). plan() moves them in this order: decodes get their rows, preempting the last in
//   rank while one has no room; swapped sequences resume; prefills and newcomers share the rest of the rows by class.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "sched/class_budgets.h"
#include "sched/scheduler.h"
#include "sched/sequence.h"
#include "sched/throttle.h"
#include "sched/waiting_queue.h"

namespace tandem {

struct Scheduler::Impl {
  Impl(const SchedulerOptions& wanted, SequenceMemory& sequence_memory);

  Sequence* find(SeqId id) const;  // null: unknown
  Sequence& at(SeqId id) const;

  // Places.
  void start_waiting(Sequence& s);  // from nowhere
  void start_running(Sequence& s);  // its memory is there
  void stop_running(Sequence& s);   // takes it off the list, no more
  void recompute(Sequence& s);      // running → waiting
  void preempt(Sequence& s);        // running → swapped or waiting
  int64_t hit_tokens(const Sequence& s) const;
  bool swap_is_cheaper(const Sequence& s) const;

  // Parts of a plan.
  void begin_plan();
  void plan_decodes();
  void plan_decode(Sequence& s);
  void resume_swapped();
  void plan_prefills();
  Sequence* next_prefill();
  bool waits_within_share() const;
  bool is_within_share(const Sequence& s) const;
  bool admit(Sequence& s);
  void plan_prefill(Sequence& s);
  int64_t end_of_next_chunk(const Sequence& s, int64_t begin) const;
  int64_t known_for_chunk(const Sequence& s, int64_t begin) const;
  bool is_replay(const Sequence& s, int64_t begin) const;            // rows from there on were decodes before
  std::span<const TokenId> prefill_tokens(const Sequence& s) const;  // that a prefill may compute or take from others
  bool has_room_beside_running(int64_t blocks) const;
  void schedule(Sequence& s, int64_t num_tokens);

  SchedulerOptions options;
  SequenceMemory& memory;
  StepTime step_time;
  ClassBudgets budgets;
  Throttle throttle;
  int64_t growth_blocks = 0;  // that a sequence needs when it grows over the end of its pages
  int64_t max_sequence_tokens = 0;

  std::unordered_map<int32_t, std::unique_ptr<Sequence>> sequences;
  WaitingQueue queue;
  std::vector<Sequence*> running;  // in rank order
  std::vector<Sequence*> swapped;  // in rank order
  int64_t num_added = 0;
  int64_t num_preemptions = 0;

  // A memory that refused an admission is not asked again before something changed, or for kRetryPlans.
  struct Refusal {
    int64_t plan = 0;
    int64_t blocks_available = 0;
    int64_t running = 0;
  };
  static constexpr int64_t kRetryPlans = 16;
  std::optional<Refusal> refusal;
  int64_t num_plans = 0;

  // The plan being made, or the step in flight.
  SchedulerStep step;
  StepTime::Work work;
  int64_t num_rows = 0;
  bool is_in_flight = false;
  bool has_decodes = false;
  bool has_prefills = false;
  bool is_admitting = false;
  bool is_prefill_blocked = false;  // a running prefill found no room
};

}  // namespace tandem

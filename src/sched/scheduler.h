// sched/scheduler.h: which rows the next step computes, for whom: continuous batching with chunked prefill.
//
//   Order of a step   decodes first, one row each, never left out for a prefill; then prefill chunks up to the budget
//   of
//                     tokens and of predicted seconds. A chunk that does not end its prompt ends on a multiple of
//                     chunk_grid, counted from token 0, so that any split gives the same numbers.
//   Admission         by priority (lower first) with aging, inside cost classes whose shares of prefill tokens and
//   blocks
//                     bound a burst; two-phase in the memory; throttled by cache utilisation (systems.md §3.4).
//   Preemption        when a decode has no room: lowest priority, then latest arrival; swap when that is cheaper than
//                     computing again, by the measured times.
//   Time is what the caller says it is. Threading: engine thread only. A warm plan() allocates nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "plan/step_plan.h"
#include "sched/sequence_memory.h"
#include "sched/step_time.h"

namespace tandem {

struct CostClass {
  int64_t max_uncached_tokens =
      0;             // a request with at most these to compute belongs here; the last class takes the rest
  double share = 0;  // of prefill tokens and of blocks; unused share is lent
};

struct SchedulerOptions {
  int64_t max_running = 64;    // sequences
  int64_t max_waiting = 1024;  // requests; more are refused
  int64_t token_budget = 512;  // rows of a step
  double step_seconds = 0;     // predicted time of a step with running decodes; 0: no limit
  int64_t chunk_grid = 16;
  double high_utilisation = 0.92;
  double low_utilisation = 0.80;
  double aging_seconds = 5;  // waiting this long is worth one level of priority
  double swap_bytes_per_second = 4e9;
  std::vector<CostClass> classes = {{2048, 0.4}, {32768, 0.3}, {262144, 0.2}, {INT64_MAX, 0.1}};
};

struct NewSequence {
  SeqId id;
  std::vector<TokenId> tokens;  // the prompt
  CacheScope scope;
  int32_t priority = 0;
  int64_t max_new_tokens = 0;
  double arrived = 0;
  bool share_prefix = true;
};

struct ScheduledRows {
  SeqId id;
  StepMode mode = StepMode::kPrefill;
  int64_t begin = 0;  // position of the first row
  int64_t num_tokens = 0;
  bool is_last = false;  // the last known token is among them: logits are wanted
};

struct SchedulerStep {
  std::vector<ScheduledRows> rows;
  double predicted_seconds = 0;
  std::vector<SeqId> admitted;  // newly running, their match at admitted_match()
  std::vector<SeqId> preempted;
};

class Scheduler {
 public:
  // `memory` outlives the scheduler.
  Scheduler(const SchedulerOptions& options, SequenceMemory& memory);
  ~Scheduler();

  Status add(NewSequence sequence);  // kResourceExhausted: max_waiting; kInvalidArgument: it could never fit
  // Finished or cancelled, wherever it is: its memory is released.
  void remove(SeqId id);
  // `to` continues from where `from` is, which has computed all its tokens but the last known. False: no blocks; `to`
  // is then added as a waiting sequence with the same tokens.
  bool fork(SeqId from, SeqId to);

  bool has_work() const;
  // The next step; empty rows when nothing can run. Valid until the next call of plan() or remove().
  const SchedulerStep& plan(double now);
  // The planned step was computed in `seconds`: its rows count as computed.
  void step_done(double seconds);
  // It failed: none of its rows do.
  void step_failed();
  void append_token(SeqId id, TokenId token);  // sampled

  std::span<const TokenId> tokens(SeqId id) const;  // prompt and generated
  int64_t num_computed_tokens(SeqId id) const;
  const PrefixMatch& admitted_match(SeqId id) const;
  const StepTime& step_time() const;

  struct Counts {
    int64_t running = 0;
    int64_t waiting = 0;
    int64_t swapped = 0;
    int64_t preemptions = 0;  // since the start
    int64_t concurrency = 0;  // the throttle's present limit
  };
  Counts counts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem

// sched/scheduler.h: which rows the next step computes, for whom: continuous batching with chunked prefill.
//
//   Step          decodes first, one row each, never left out for a prefill; then prefill chunks up to the budget of
//                 tokens and of predicted seconds. A chunk that does not end its prompt ends on a multiple of
//                 chunk_grid, counted from token 0, so that any split gives the same numbers.
//   Classes       requests by the tokens they have to compute: each class has a share of prefill tokens and of blocks
//                 that bounds a burst; what is not used is lent and taken back with the next request.
//   Rank          inside a class by priority (lower first) with aging, then arrival.
//   Admission     swapped sequences first; two-phase in the memory; never into the page that a running sequence may
//                 need next; throttled by cache utilisation (systems.md §3.4).
//   Preemption    when a decode, or every prefill, has no room: the last in rank; by swap when that is cheaper than
//                 computing again, by the measured times. A sequence to be computed again waits at its old place.
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
  // A request with at most these to compute belongs here; the last class takes the rest.
  int64_t max_uncached_tokens = 0;
  double share = 0;  // of prefill tokens and of blocks, in parts of the sum of all; unused share is lent
};

std::vector<CostClass> default_cost_classes();

struct SchedulerOptions {
  int64_t max_running = 64;    // sequences; so many less that a step has room for one grid beside their decodes
  int64_t max_waiting = 1024;  // requests; more are refused
  int64_t token_budget = 512;  // rows of a step; at least one grid and one
  double step_seconds = 0;     // predicted time of a step with running decodes; 0: no limit. One grid always goes
  int64_t chunk_grid = 16;
  double high_utilisation = 0.92;
  double low_utilisation = 0.80;
  double aging_seconds = 5;  // waiting this long is worth one level of priority
  double swap_bytes_per_second = 4e9;
  // A sequence computed again takes its prompt as a prompt and its generated tokens as decodes, and matches with its
  // prompt alone: its numbers are those of the first time, bit for bit. Else all of it is one prefill, which is faster.
  bool replay_generated = false;
  std::vector<CostClass> classes = default_cost_classes();
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
  StepMode mode = StepMode::kPrefill;  // kDecode: all known tokens but the last are computed, or it is replayed
  int64_t begin = 0;                   // position of the first row
  int64_t num_tokens = 0;
  bool is_last = false;  // the last known token is among them: logits are wanted
};

struct SchedulerStep {
  std::vector<ScheduledRows> rows;
  double predicted_seconds = 0;
  std::vector<SeqId> admitted;  // their match at admitted_match(); once more when computed again after a preemption
  std::vector<SeqId> resumed;   // from swap
  std::vector<SeqId> preempted;
};

class Scheduler {
 public:
  // `memory` outlives the scheduler.
  Scheduler(const SchedulerOptions& options, SequenceMemory& memory);
  ~Scheduler();

  // kResourceExhausted: max_waiting; kInvalidArgument: empty, or its prompt and new tokens together could never fit.
  Status add(NewSequence sequence);
  // Prompt and new tokens of the longest request that add() takes.
  int64_t max_sequence_tokens() const;
  // Finished or cancelled, wherever it is: its memory is released and its rows leave a step in flight. An unknown id is
  // ignored.
  void remove(SeqId id);
  // `to` continues from where `from` is, which runs and has computed all its tokens, or all but the last known. False:
  // `from` is not there, no blocks, or no place among the running; `to` then waits with the same tokens.
  bool fork(SeqId from, SeqId to);

  bool has_work() const;
  // The next step; empty rows when nothing can run. Valid until the next call of plan() or remove(). Every row's
  // sequence has passed memory.prepare_step(). A step with rows is settled by step_done() or step_failed().
  const SchedulerStep& plan(double now);
  // The planned step was computed in `seconds`: its rows count as computed.
  void step_done(double seconds);
  // It failed: none of its rows do, and as a state may be half written, its sequences lose their memory and wait to be
  // computed again from the start. The caller removes those that it gives up.
  void step_failed();
  void append_token(SeqId id, TokenId token);  // sampled

  // `id` is known here.
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

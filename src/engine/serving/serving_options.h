// engine/serving/serving_options.h: how an engine that serves is set up. Plain data.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "cache/hybrid_cache.h"
#include "sched/scheduler.h"

namespace tandem {

enum class EventSeverity { kInfo, kError };

// Something an operator should read. The library prints nothing: whoever owns the engine does.
struct EngineEvent {
  EventSeverity severity = EventSeverity::kInfo;
  std::string message;
};

// The longest pause, as predicted, that somebody else's long prompt puts between two tokens of a reply.
inline constexpr double kDefaultStepSeconds = 0.25;

inline SchedulerOptions default_serving_scheduler() {
  SchedulerOptions options;
  options.step_seconds = kDefaultStepSeconds;
  return options;
}

struct ServingOptions {
  // max_waiting is held at submit(), where a refusal can be told.
  SchedulerOptions scheduler = default_serving_scheduler();

  std::optional<int64_t> cache_bytes;  // of all blocks; none: half of the memory that is free
  int64_t swap_bytes = int64_t{1} << 30;
  int64_t hash_unit = kDefaultHashUnit;
  int64_t checkpoint_interval = 32768;
  int64_t checkpoints_per_chain = 4;
  bool share_prefixes = true;
  // The same request gives the same bits whatever ran before or beside it: only prompts are shared, and a sequence
  // computed again is computed the same way. Else a reply may be resumed from what its own decoding left, which equals
  // a prefill of it within rounding.
  bool deterministic = false;
  bool poison = false;
  std::optional<int64_t> context_limit;  // tokens of a sequence; none: the model's. Never more than the cache holds

  double verify_rate = 0;           // share of the hits that are computed again, in [0, 1]
  double verify_busy_share = 0.02;  // of the compute time, while requests run or ran a moment ago; then unlimited
  double verify_quiet_seconds = 1;  // that moment: nothing to compute for so long
  int64_t verify_queue = 16;        // hits waiting for that; more are skipped
  std::string verify_dump_dir;      // where a failure's reproducer goes; empty: nowhere

  int64_t audit_steps = 0;  // the cache's invariants are checked after so many steps, and when it falls idle; 0: never

  int64_t remembered_requests = 4096;                // explanations of finished requests
  int64_t remembered_tokens = int64_t{16} << 20;     // of their prompts together
  std::function<void(const EngineEvent&)> on_event;  // on the engine's thread; must not block

  // False: the owner calls step(); from other threads come submit(), cancel() and what only reads numbers. For tests
  // and measurements.
  bool run_thread = true;
};

}  // namespace tandem

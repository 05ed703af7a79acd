// tests/sched/engine_stand_in.h: what an engine does with a scheduler, without a model, on a clock that tests move:
// plan, check the step against the laws, commit, sample a token, finish. Every law is checked at every step.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "sched/fake_memory.h"
#include "sched/scheduler.h"

namespace tandem::test {

// t = 1 ms + 0.1 ms a row + 1 ns a row and token it sees.
inline double true_seconds(const SchedulerStep& step) {
  double seconds = 1e-3;
  for (const ScheduledRows& r : step.rows) {
    const double rows = static_cast<double>(r.num_tokens);
    seconds += 1e-4 * rows + 1e-9 * rows * (static_cast<double>(2 * r.begin + r.num_tokens + 1) / 2);
  }
  return seconds;
}

class EngineStandIn {
 public:
  struct Client {
    int64_t prompt = 0;
    int64_t max_new_tokens = 0;
    int64_t generated = 0;
    int64_t prefill_tokens = 0;
    int64_t steps = 0;  // with rows
    double arrived = 0;
    std::optional<double> first_scheduled;
    std::optional<double> finished;
  };

  EngineStandIn(const SchedulerOptions& wanted, const FakeMemoryOptions& memory_options)
      : options(wanted), memory(memory_options), scheduler(wanted, memory) {}

  // Tokens [0, prompt) of a text that starts with `shared` tokens of family `family` and goes on by itself.
  std::vector<TokenId> text(int32_t id, int64_t prompt, int64_t shared = 0, int32_t family = 0) const {
    std::vector<TokenId> tokens;
    for (int64_t i = 0; i < prompt; ++i) {
      const int64_t stem = i < shared ? family : 1000 + id;
      tokens.emplace_back(static_cast<int32_t>(stem * 7919 + i * 31));
    }
    return tokens;
  }

  Status add(int32_t id, std::vector<TokenId> tokens, int64_t max_new_tokens, int32_t priority = 0) {
    const int64_t prompt = static_cast<int64_t>(tokens.size());
    const Status status =
        scheduler.add({SeqId(id), std::move(tokens), CacheScope{}, priority, max_new_tokens, now, true});
    if (status.is_ok()) clients[id] = {prompt, max_new_tokens, 0, 0, 0, now, std::nullopt, std::nullopt};
    return status;
  }
  Status add(int32_t id, int64_t prompt, int64_t max_new_tokens, int32_t priority = 0) {
    return add(id, text(id, prompt), max_new_tokens, priority);
  }

  void remove(int32_t id) {
    scheduler.remove(SeqId(id));
    clients.erase(id);
  }

  // A whole step; false: it had no rows.
  bool step() {
    const SchedulerStep& planned = plan();
    if (planned.rows.empty()) return false;
    finish_step(true_seconds(planned));
    return true;
  }

  const SchedulerStep& plan() {
    const SchedulerStep& planned = scheduler.plan(now);
    check_step(planned);
    step_rows = planned.rows;
    return planned;
  }

  void finish_step(double seconds) {
    now += seconds;
    for (const ScheduledRows& r : step_rows) {
      if (clients.contains(r.id.value)) memory.commit(r.id, scheduler.tokens(r.id));
    }
    scheduler.step_done(seconds);
    for (const ScheduledRows& r : step_rows) {
      const auto client = clients.find(r.id.value);
      if (client == clients.end()) continue;
      Client& c = client->second;
      ++c.steps;
      if (r.mode == StepMode::kPrefill) c.prefill_tokens += r.num_tokens;
      EXPECT_EQ(scheduler.num_computed_tokens(r.id), memory.length(r.id));
      if (r.is_last) deliver(r.id, c);
    }
    step_rows.clear();
  }

  void fail_step() {
    for (const ScheduledRows& r : step_rows) {
      if (clients.contains(r.id.value)) memory.abort(r.id);
    }
    scheduler.step_failed();
    step_rows.clear();
  }

  void deliver(SeqId id, Client& c) {
    ++c.generated;
    if (c.generated >= c.max_new_tokens) {
      c.finished = now;
      scheduler.remove(id);
      if (on_finish) on_finish(id.value, c);
      clients.erase(id.value);
      ++num_finished;
      return;
    }
    scheduler.append_token(id, TokenId(static_cast<int32_t>(id.value * 131 + c.generated)));
  }

  // Until nothing is left; false: no progress, or too many steps.
  bool run(int64_t max_steps) {
    for (int64_t i = 0; i < max_steps && !clients.empty(); ++i) {
      if (!step()) return false;
    }
    return clients.empty();
  }

  void check_step(const SchedulerStep& planned) {
    int64_t rows = 0;
    int64_t prefill_rows = 0;
    std::map<int32_t, int64_t> seen;
    for (const ScheduledRows& r : planned.rows) {
      const int64_t known = static_cast<int64_t>(scheduler.tokens(r.id).size());
      const int64_t end = r.begin + r.num_tokens;
      ASSERT_EQ(seen[r.id.value]++, 0) << "sequence " << r.id.value << " twice in a step";
      ASSERT_GT(r.num_tokens, 0);
      ASSERT_LE(end, known);
      ASSERT_EQ(r.begin, scheduler.num_computed_tokens(r.id));
      ASSERT_EQ(r.begin, memory.length(r.id)) << "sequence " << r.id.value;
      ASSERT_EQ(r.is_last, end == known);
      ASSERT_EQ(r.mode == StepMode::kDecode, r.begin == known - 1);
      if (end != known) {
        ASSERT_EQ(end % options.chunk_grid, 0) << "a chunk ends off the grid";
      }
      if (r.mode == StepMode::kPrefill) prefill_rows += r.num_tokens;
      rows += r.num_tokens;
      Client& c = clients.at(r.id.value);
      if (!c.first_scheduled) c.first_scheduled = now;
    }
    ASSERT_LE(rows, std::max(options.token_budget, options.chunk_grid + 1));
    // Every decode that runs has its row, unless it is alone and has no room.
    for (const auto& [id, client] : clients) {
      const bool is_decode =
          scheduler.num_computed_tokens(SeqId(id)) == static_cast<int64_t>(scheduler.tokens(SeqId(id)).size()) - 1;
      if (memory.holds(SeqId(id)) && is_decode && prefill_rows > 0) {
        ASSERT_EQ(seen[id], 1) << "decode " << id << " was left out";
      }
    }
    check_counts();
  }

  void check_counts() {
    const Scheduler::Counts counts = scheduler.counts();
    ASSERT_EQ(counts.running, memory.num_sequences());
    ASSERT_EQ(counts.swapped, memory.num_swapped());
    ASSERT_EQ(counts.running + counts.swapped + counts.waiting, static_cast<int64_t>(clients.size()));
    ASSERT_LE(counts.running, std::max<int64_t>(options.max_running, 1));
    ASSERT_GE(counts.concurrency, 1);
    ASSERT_EQ(memory.problem(), "");
  }

  // Nothing is left of anybody.
  void check_empty() {
    ASSERT_TRUE(clients.empty());
    ASSERT_FALSE(scheduler.has_work());
    check_counts();
    ASSERT_EQ(memory.blocks_available(), memory.blocks_total());
  }

  SchedulerOptions options;
  FakeMemory memory;
  Scheduler scheduler;
  double now = 0;
  std::map<int32_t, Client> clients;  // alive
  std::vector<ScheduledRows> step_rows;
  int64_t num_finished = 0;
  std::function<void(int32_t, const Client&)> on_finish;
};

}  // namespace tandem::test

// Random lives of many sequences in a small pool: whatever happens in whatever order, the laws of a step hold, nothing
// leaks, there is a step while there is work, and everybody who is not cancelled finishes.
#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <random>

#include "sched/engine_stand_in.h"
#include "support/effort.h"

namespace tandem {
namespace {

using test::EngineStandIn;
using test::FakeMemoryOptions;

class RandomLife {
 public:
  explicit RandomLife(uint64_t seed)
      : random_(seed), memory_options_(random_memory()), engine_(random_options(), memory_options_) {}

  void run(int64_t operations) {
    for (int64_t i = 0; i < operations && !testing::Test::HasFailure(); ++i) operate();
    engine_.memory.give_back_held();
    engine_.memory.refuse_admissions = 0;
    ASSERT_TRUE(testing::Test::HasFailure() || engine_.run(1000000)) << "somebody never finishes";
    engine_.check_empty();
  }

  int64_t num_finished() const { return engine_.num_finished; }
  Scheduler::Counts counts() const { return engine_.scheduler.counts(); }
  int64_t num_resumed = 0;
  int64_t num_hit_tokens = 0;

 private:
  int64_t pick(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }

  FakeMemoryOptions random_memory() {
    return {pick(6, 60), pick(1, 4) * 8, pick(0, 3), pick(0, 2) == 0 ? pick(0, 20) * 1000 : INT64_MAX, pick(0, 3) > 0};
  }

  SchedulerOptions random_options() {
    SchedulerOptions o;
    o.max_running = pick(1, 12);
    o.max_waiting = pick(4, 40);
    o.chunk_grid = pick(0, 1) == 0 ? 16 : pick(1, 8);
    o.token_budget = pick(1, 80);
    o.step_seconds = pick(0, 1) == 0 ? 0 : 1e-3 * static_cast<double>(pick(1, 6));
    o.aging_seconds = static_cast<double>(pick(0, 3)) * 0.1;
    o.swap_bytes_per_second = pick(0, 3) == 0 ? 0 : std::pow(10.0, static_cast<double>(pick(4, 8)));
    o.classes = {{20, 0.5}, {60, 0.3}, {INT64_MAX, 0.2}};
    return o;
  }

  void operate() {
    const int64_t what = pick(0, 99);
    if (what < 25) return add();
    if (what < 30) return fork();
    if (what < 34) return remove();
    if (what == 34) return engine_.memory.evict_all();
    if (what == 35) return static_cast<void>(engine_.memory.hold(pick(1, 3)) ? is_held_ = true : false);
    if (what < 38) {
      engine_.memory.give_back_held();
      is_held_ = false;
      return;
    }
    if (what == 38) {
      engine_.memory.refuse_admissions = pick(1, 3);
      return;
    }
    step(what);
  }

  void add() {
    const int64_t prompt = pick(1, 120);
    const int64_t new_tokens = pick(1, 60);
    const int32_t id = next_id_++;
    const Status status = engine_.add(id, engine_.text(id, prompt, pick(0, 120), static_cast<int32_t>(pick(0, 2))),
                                      new_tokens, static_cast<int32_t>(pick(-2, 2)));
    const bool fits = prompt + new_tokens <= engine_.scheduler.max_sequence_tokens();
    const bool is_full = static_cast<int64_t>(engine_.scheduler.counts().waiting) >= engine_.options.max_waiting;
    ASSERT_EQ(status.code() == StatusCode::kInvalidArgument, !fits) << status.message();
    if (fits && !status.is_ok()) {
      ASSERT_TRUE(status.code() == StatusCode::kResourceExhausted && is_full) << status.message();
    }
  }

  int32_t anybody() {
    auto place = engine_.clients.begin();
    std::advance(place, pick(0, static_cast<int64_t>(engine_.clients.size()) - 1));
    return place->first;
  }

  void fork() {
    if (engine_.clients.empty() || engine_.clients.size() > 60) return;
    const int32_t from = anybody();
    const int32_t to = next_id_++;
    const bool is_forked = engine_.scheduler.fork(SeqId(from), SeqId(to));
    engine_.clients[to] = engine_.clients[from];
    engine_.clients[to].first_scheduled.reset();
    ASSERT_EQ(is_forked, engine_.memory.holds(SeqId(to)));
    engine_.check_counts();
  }

  void remove() {
    if (engine_.clients.empty()) return;
    const int32_t id = anybody();
    engine_.remove(id);
    ASSERT_FALSE(engine_.memory.holds(SeqId(id)) || engine_.memory.has_swapped(SeqId(id)));
    engine_.check_counts();
  }

  void step(int64_t what) {
    const bool had_work = engine_.scheduler.has_work();
    const bool is_free = !is_held_ && engine_.memory.refuse_admissions == 0;
    const SchedulerStep& planned = engine_.plan();
    if (testing::Test::HasFatalFailure()) return;
    ASSERT_TRUE(!had_work || !is_free || !planned.rows.empty()) << "work, all the memory, and no step";
    num_resumed += static_cast<int64_t>(planned.resumed.size());
    for (SeqId id : planned.admitted)
      num_hit_tokens += engine_.memory.holds(id) ? engine_.scheduler.admitted_match(id).hit_tokens : 0;
    if (planned.rows.empty()) return;
    const double seconds = test::true_seconds(planned);
    if (what < 45) remove();
    if (what == 45) return engine_.fail_step();
    engine_.finish_step(seconds);
  }

  std::mt19937_64 random_;
  FakeMemoryOptions memory_options_;
  EngineStandIn engine_;
  int32_t next_id_ = 1;
  bool is_held_ = false;
};

TEST(SchedulerFuzz, RandomLivesKeepEveryLaw) {
  int64_t finished = 0;
  int64_t preemptions = 0;
  int64_t resumed = 0;
  int64_t hit_tokens = 0;
  const int64_t lives = test::effort(400);
  for (int64_t seed = 1; seed <= lives; ++seed) {
    SCOPED_TRACE(seed);
    RandomLife life(static_cast<uint64_t>(seed));
    life.run(1000);
    if (HasFailure()) return;
    finished += life.num_finished();
    preemptions += life.counts().preemptions;
    resumed += life.num_resumed;
    hit_tokens += life.num_hit_tokens;
  }
  // The lives were not dull.
  EXPECT_GT(finished, lives * 20);
  EXPECT_GT(preemptions, lives);
  EXPECT_GT(resumed, lives / 10);
  EXPECT_GT(hit_tokens, lives * 10);
  RecordProperty("finished", std::to_string(finished));
  RecordProperty("preemptions", std::to_string(preemptions));
  RecordProperty("resumed", std::to_string(resumed));
}

}  // namespace
}  // namespace tandem

// Every interleaving of what can happen to three sequences in a pool that does not hold them together: all orders of
// add, plan, done, failed and remove up to a depth, then every distinct situation further down. After each event the
// laws of a step and the pool's books are checked, and from every situation those that are left finish: no phase of an
// admission is lost, and nobody is stuck while memory is free.
#include <gtest/gtest.h>

#include <string>
#include <unordered_set>
#include <vector>

#include "sched/engine_stand_in.h"
#include "support/effort.h"

namespace tandem {
namespace {

using test::EngineStandIn;
using test::FakeMemoryOptions;

enum class Event : char { kAdd = 'a', kPlan = 'p', kDone = 'd', kFailed = 'f', kRemove1 = '1', kRemove2, kRemove3 };

struct World {
  std::string name;
  FakeMemoryOptions memory;
  double swap_bytes_per_second = 0;
  int64_t max_running = 3;
};

struct Shape {
  int64_t prompt;
  int64_t new_tokens;
  int64_t shared;
  int32_t priority;
};
// Pages of 2 tokens, a grid of 2, 4 rows a step. The third is of higher priority than the first two.
constexpr Shape kShapes[] = {{5, 3, 4, 0}, {6, 2, 4, 0}, {1, 5, 0, -1}};

class Life {
 public:
  explicit Life(const World& world) : engine_(options_of(world), world.memory) {}

  bool is_possible(Event event) const {
    switch (event) {
      case Event::kAdd: return num_added_ < 3;
      case Event::kPlan: return !is_in_flight_ && engine_.scheduler.has_work();
      case Event::kDone:
      case Event::kFailed: return is_in_flight_;
      default: return engine_.clients.contains(static_cast<char>(event) - '0');
    }
  }

  void happen(Event event) {
    switch (event) {
      case Event::kAdd: {
        const Shape& shape = kShapes[num_added_++];
        engine_.now += 1e-6;
        ASSERT_TRUE(
            engine_
                .add(num_added_, engine_.text(num_added_, shape.prompt, shape.shared), shape.new_tokens, shape.priority)
                .is_ok());
        return;
      }
      case Event::kPlan:
        is_in_flight_ = true;
        ASSERT_FALSE(engine_.plan().rows.empty()) << "work, all the memory, and no step";
        return;
      case Event::kDone:
        is_in_flight_ = false;
        engine_.finish_step(0.001);
        return;
      case Event::kFailed:
        is_in_flight_ = false;
        engine_.fail_step();
        return;
      default: engine_.remove(static_cast<char>(event) - '0'); return;
    }
  }

  void check() { engine_.check_counts(); }

  // What can be seen of the situation.
  std::string describe() const {
    std::string text = std::to_string(num_added_) + (is_in_flight_ ? "!" : ".");
    for (const auto& [id, client] : engine_.clients) {
      const SeqId seq(id);
      const char place = engine_.memory.holds(seq) ? 'r' : engine_.memory.has_swapped(seq) ? 's' : 'w';
      text += ' ';
      text += place;
      text += std::to_string(id) + ":" + std::to_string(engine_.scheduler.num_computed_tokens(seq)) + "/" +
              std::to_string(engine_.scheduler.tokens(seq).size());
    }
    for (const ScheduledRows& r : engine_.step_rows) {
      text += " +" + std::to_string(r.id.value) + "," + std::to_string(r.num_tokens);
    }
    return text + " free " + std::to_string(engine_.memory.blocks_available()) + " limit " +
           std::to_string(engine_.scheduler.counts().concurrency);
  }

  // Those that are left finish, and leave nothing.
  void live_on() {
    if (is_in_flight_) happen(Event::kDone);
    ASSERT_TRUE(engine_.run(300)) << "somebody is stuck";
    engine_.check_empty();
  }

 private:
  static SchedulerOptions options_of(const World& world) {
    SchedulerOptions o;
    o.token_budget = 4;
    o.chunk_grid = 2;
    o.max_running = world.max_running;
    o.aging_seconds = 1;
    o.swap_bytes_per_second = world.swap_bytes_per_second;
    o.classes = {{2, 0.5}, {INT64_MAX, 0.5}};
    return o;
  }

  EngineStandIn engine_;
  int32_t num_added_ = 0;
  bool is_in_flight_ = false;
};

constexpr Event kEvents[] = {Event::kAdd,     Event::kPlan,    Event::kDone,   Event::kFailed,
                             Event::kRemove1, Event::kRemove2, Event::kRemove3};

class Explorer {
 public:
  explicit Explorer(const World& world) : world_(world) {}

  // All orders of `depth` events; `merge`: only one of those that lead to the same situation goes on.
  void explore(int64_t depth, bool merge) {
    merge_ = merge;
    extend(depth);
  }
  int64_t num_paths = 0;
  std::unordered_set<std::string> situations;

 private:
  void extend(int64_t depth) {
    std::vector<Event> possible;
    {
      Life life(world_);
      for (Event event : path_) life.happen(event);
      if (!path_.empty()) life.check();
      ++num_paths;
      std::string situation = life.describe();
      const bool is_new = situations.insert(std::move(situation)).second;
      if (merge_ && !is_new) return;
      for (Event event : kEvents) {
        if (life.is_possible(event)) possible.push_back(event);
      }
      if (is_new) life.live_on();
      if (testing::Test::HasFailure()) {
        ADD_FAILURE() << world_.name << ": " << names();
        return;
      }
    }
    if (depth == 0) return;
    for (Event event : possible) {
      path_.push_back(event);
      extend(depth - 1);
      if (testing::Test::HasFailure()) return;
      path_.pop_back();
    }
  }

  std::string names() const {
    std::string text;
    for (Event event : path_) text += static_cast<char>(event);
    return text;
  }

  const World& world_;
  bool merge_ = false;
  std::vector<Event> path_;
};

// The first alone needs a state and 4 pages: 5 blocks.
const World kWorlds[] = {
    {"computed again", {5, 2, 1, INT64_MAX, true}, 0, 3},   {"swapped", {6, 2, 1, INT64_MAX, true}, 1e12, 3},
    {"swap space of one", {7, 2, 1, 3000, false}, 1e12, 3}, {"two places", {9, 2, 2, INT64_MAX, true}, 1e12, 2},
    {"no states", {5, 2, 0, INT64_MAX, false}, 1e12, 3},
};

TEST(SchedulerExplorer, AllOrdersOfEventsOfThreeSequences) {
  for (const World& world : kWorlds) {
    Explorer explorer(world);
    explorer.explore(test::effort(10) == 10 ? 10 : 8, false);
    if (HasFailure()) return;
    RecordProperty(world.name, std::to_string(explorer.num_paths));
    EXPECT_GT(explorer.num_paths, 4000);
  }
}

TEST(SchedulerExplorer, AllSituationsOfThreeSequences) {
  for (const World& world : kWorlds) {
    Explorer explorer(world);
    explorer.explore(32, true);
    if (HasFailure()) return;
    RecordProperty(world.name, std::to_string(explorer.situations.size()));
    EXPECT_GT(explorer.situations.size(), 700U);
    int64_t num_swapped = 0;
    for (const std::string& situation : explorer.situations) num_swapped += situation.find(" s") != std::string::npos;
    EXPECT_EQ(num_swapped > 0, world.swap_bytes_per_second > 0) << world.name;
  }
}

}  // namespace
}  // namespace tandem

#include "stream/trace_replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <random>

#include "base/cat.h"
#include "base/read_file.h"
#include "support/golden.h"

namespace tandem {
namespace {

constexpr int64_t kFew = 6;  // experts of a tiny trace's layer

RecordedTrace trace_of(std::vector<std::vector<std::vector<int32_t>>> tokens, int64_t num_experts) {
  RecordedTrace trace;
  trace.num_layers = static_cast<int64_t>(tokens.at(0).size());
  trace.num_experts = num_experts;
  trace.tokens = std::move(tokens);
  for (const auto& token : trace.tokens) {
    for (const auto& ids : token) trace.num_needs += static_cast<int64_t>(ids.size());
  }
  return trace;
}

// A trace of single needs of one layer.
RecordedTrace single_needs(const std::vector<int32_t>& needs, int64_t num_experts = kFew) {
  std::vector<std::vector<std::vector<int32_t>>> tokens;
  for (const int32_t expert : needs) tokens.push_back({{expert}});
  return trace_of(std::move(tokens), num_experts);
}

RecordedTrace recorded() {
  const std::string path = test::data_path("traces/kimi-linear-300.jsonl");
  const Result<std::string> text = read_file(path, "a routing trace");
  EXPECT_TRUE(text.is_ok()) << text.status().message();
  Result<RecordedTrace> trace = parse_trace(text.value(), path);
  EXPECT_TRUE(trace.is_ok()) << trace.status().message();
  return std::move(trace).value();
}

// The most hits of any choice of what to hold, over all of them: sets of experts as bits.
int64_t best_hits(const std::vector<int32_t>& needs, int64_t capacity, bool may_bypass) {
  std::map<uint32_t, int64_t> best = {{0, 0}};
  for (const int32_t expert : needs) {
    std::map<uint32_t, int64_t> next;
    const auto reach = [&](uint32_t held, int64_t hits) {
      int64_t& known = next.try_emplace(held, hits).first->second;
      known = std::max(known, hits);
    };
    const uint32_t bit = uint32_t{1} << expert;
    for (const auto& [held, hits] : best) {
      if ((held & bit) != 0) {
        reach(held, hits + 1);
        continue;
      }
      if (may_bypass) reach(held, hits);
      if (std::popcount(held) < capacity) reach(held | bit, hits);
      for (int other = 0; other < kFew; ++other) {
        const uint32_t gone = uint32_t{1} << other;
        if ((held & gone) != 0) reach((held & ~gone) | bit, hits);
      }
    }
    best = std::move(next);
  }
  int64_t most = 0;
  for (const auto& [held, hits] : best) most = std::max(most, hits);
  return most;
}

TEST(Belady, HasTheMostHitsOfAnyChoice) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<int32_t> needs(14);
    for (int32_t& expert : needs) expert = static_cast<int32_t>(random() % kFew);
    for (const int64_t capacity : {1, 2, 3, 5}) {
      SCOPED_TRACE(cat("round ", round, ", capacity ", capacity));
      const RecordedTrace trace = single_needs(needs);
      EXPECT_EQ(belady_hits(trace, capacity, BeladyAdmission::kMayBypass), best_hits(needs, capacity, true));
      EXPECT_EQ(belady_hits(trace, capacity, BeladyAdmission::kAlways), best_hits(needs, capacity, false));
    }
  }
}

TEST(Belady, HoldsNothingWithoutRoomAndEverythingWithRoom) {
  const RecordedTrace trace = single_needs({0, 1, 0, 2, 1, 0});
  EXPECT_EQ(belady_hits(trace, 0, BeladyAdmission::kMayBypass), 0);
  EXPECT_EQ(belady_hits(trace, 3, BeladyAdmission::kAlways), 3);  // three first needs are read
}

TEST(Replay, LeastRecentlyUsedByHand) {
  //                                                  0 1 2: full; 0 hits; 3 takes 1's place; 1 takes 2's; 0 hits
  const RecordedTrace trace = single_needs({0, 1, 2, 0, 3, 1, 0});
  EXPECT_EQ(replay_hits(trace, *make_lru_policy(1, kFew), 3), 2);
}

TEST(Replay, LeastFrequentlyRecentlyUsedByHand) {
  // Of four places two are privileged. After 0 0 0 1 2 3 these are {2, 3}, and 1 (needed once) leaves before 0 (three
  // times) when 4 comes; least recently used would have given up 0.
  const RecordedTrace trace = single_needs({0, 0, 0, 1, 2, 3, 4, 0, 1});
  EXPECT_EQ(replay_hits(trace, *make_lfru_policy(1, kFew), 4), 3);
  EXPECT_EQ(replay_hits(trace, *make_lru_policy(1, kFew), 4), 2);
}

TEST(Replay, AStepThatNeedsMoreThanThereIsRoomForIsServed) {
  const RecordedTrace trace = trace_of({{{0, 1, 2, 3}}, {{0, 1, 2, 3}}}, 4);
  for (const auto make : {make_lru_policy, make_lfru_policy, make_reuse_policy}) {
    EXPECT_EQ(replay_hits(trace, *make(1, 4), 2), 2);  // the two that were kept
  }
}

TEST(Replay, FrequencyKnownBeforehandCountsEachFirstNeedAsRead) {
  EXPECT_EQ(frequency_hits(single_needs({0, 0, 0, 1, 1, 2}), 2), 3);
}

TEST(Replay, TheRecordedTraceIsReadWhole) {
  const RecordedTrace trace = recorded();
  EXPECT_EQ(trace.tokens.size(), 300U);
  EXPECT_EQ(trace.num_layers, 26);
  EXPECT_EQ(trace.num_experts, 256);
  EXPECT_EQ(trace.num_needs, 300 * 26 * 8);
}

TEST(Replay, OurPolicyBeatsBothOnTheRecordedTrace) {
  const RecordedTrace trace = recorded();
  const Result<ReplayReport> report = replay_trace(trace, {10, 25, 50});
  ASSERT_TRUE(report.is_ok()) << report.status().message();
  const auto points = [&](int64_t hits) {
    return 100.0 * static_cast<double>(hits) / static_cast<double>(trace.num_needs);
  };
  // What the recorded trace allows: docs/streaming.md, "Which experts stay".
  const double gaps[] = {13.8, 10.0, 3.6};
  ASSERT_EQ(report.value().rows.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    const ReplayRow& row = report.value().rows[i];
    SCOPED_TRACE(cat(row.percent, " %"));
    EXPECT_GT(row.reuse, row.lru);
    EXPECT_GT(row.reuse, row.lfru);
    EXPECT_LE(row.reuse, row.belady);
    EXPECT_LE(points(row.belady - row.reuse), gaps[i]);
    EXPECT_GE(row.belady, belady_hits(trace, row.capacity, BeladyAdmission::kAlways));
  }
}

TEST(Replay, CapacitiesOutsideTheTraceAreRefused) {
  const RecordedTrace trace = single_needs({0, 1, 2});
  for (const double percent : {0.0, -5.0, 100.5, 1.0}) {  // 1 % of six experts is none
    const Result<ReplayReport> report = replay_trace(trace, {percent});
    ASSERT_FALSE(report.is_ok()) << percent;
    EXPECT_NE(report.status().message().find("capacity"), std::string::npos);
  }
}

TEST(ParseTrace, RefusesByLineWithWhatWasExpectedAndFound) {
  const std::string good = R"({"tok": 0, "layers": [[0, 3], [1]]})"
                           "\n";
  struct Case {
    std::string text;
    std::vector<std::string> says;
  };
  const Case cases[] = {
      {"", {"t:", "empty file"}},
      {"\n", {"t:1:", "broken JSON"}},
      {good + "{\"tok\": 1, \"layers\": [[0", {"t:2:", "broken JSON"}},
      {good + "[1]\n", {"t:2:", "expected a JSON object", "found array"}},
      {good + R"({"layers": [[0], [1]]})", {"t:2:", "found no \"tok\""}},
      {good + R"({"tok": 1})", {"t:2:", "found no \"layers\""}},
      {good + R"({"tok": -1, "layers": [[0], [1]]})", {"t:2:", "tok", "found -1"}},
      {good + R"({"tok": 1, "layers": []})", {"t:2:", "layers", "empty"}},
      {good + R"({"tok": 1, "layers": 7})", {"t:2:", "layers", "found number"}},
      {good + R"({"tok": 1, "layers": [[0]]})", {"t:2:", "expected 2", "found 1"}},
      {good + R"({"tok": 1, "layers": [[0], [3, 1]]})", {"t:2:", "layer 1", "ascending", "found 1 after 3"}},
      {good + R"({"tok": 1, "layers": [[0], [3, 3]]})", {"t:2:", "layer 1", "found 3 after 3"}},
      {good + R"({"tok": 1, "layers": [[-2], [1]]})", {"t:2:", "layer 0", "found -2"}},
      {good + R"({"tok": 1, "layers": [[0.5], [1]]})", {"t:2:", "layer 0", "whole numbers", "found 0.5"}},
      {good + R"({"tok": 1, "layers": [["a"], [1]]})", {"t:2:", "layer 0", "found \"a\""}},
      {good + R"({"tok": 1, "layers": [[99999999999], [1]]})", {"t:2:", "layer 0", "found 99999999999"}},
      {good + R"({"tok": 1, "layers": [[0], []]})", {"t:2:", "layer 1", "found none"}},
      {good + R"({"tok": 1, "layers": [[0], 5]})", {"t:2:", "layer 1", "found number"}},
  };
  for (const Case& bad : cases) {
    const Result<RecordedTrace> trace = parse_trace(bad.text, "t");
    ASSERT_FALSE(trace.is_ok()) << bad.text;
    for (const std::string& part : bad.says) {
      EXPECT_NE(trace.status().message().find(part), std::string::npos) << trace.status().message();
    }
  }
  EXPECT_TRUE(parse_trace(good, "t").is_ok());
  const Result<RecordedTrace> narrow = parse_trace(good, "t", 3);
  ASSERT_FALSE(narrow.is_ok());
  EXPECT_NE(narrow.status().message().find("below 3, found 3"), std::string::npos);
}

}  // namespace
}  // namespace tandem

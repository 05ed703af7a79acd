// Verification of cache hits: sound ones pass whatever path made them, a wrong number is caught, told, dumped, and
// given to nobody again.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "engine/serving_support.h"
#include "support/temp_folder.h"

namespace tandem {
namespace {

using test::alone;
using test::Engine;
using test::greedy_request;
using test::joined;
using test::random_prompt;
using test::Reply;
using test::small_options;
using test::Tokens;
using ::testing::HasSubstr;

class ServingVerifyTest : public ::testing::Test {
 protected:
  LoadedModel& model() { return *model_; }
  ServingOptions options() {
    ServingOptions options = small_options();
    options.verify_rate = 1;
    options.verify_dump_dir = dir_;
    options.on_event = [this](const EngineEvent& event) { events_.push_back(event.message); };
    return options;
  }
  // The failure of this request's hit was told, dumped and is not given again.
  void expect_caught(Engine& engine, const Tokens& prompt, const std::string& what) {
    const EngineMetrics metrics = engine->metrics();
    EXPECT_EQ(metrics.verify_failed, 1);
    EXPECT_THAT(engine->health().problem, HasSubstr(what));
    ASSERT_EQ(events_.size(), 1u);
    EXPECT_THAT(events_[0], HasSubstr(dir_));
    const auto report = nlohmann::json::parse(test::read_text(dir_ + "/verify-1.json"));
    EXPECT_EQ(report["mismatch"]["what"], what);
    EXPECT_NE(report["mismatch"]["expected"], report["mismatch"]["found"]);
    EXPECT_EQ(report["tokens"].size(), prompt.size());
    EXPECT_EQ(report["model"], model().dir());
    EXPECT_EQ(report["options"]["hash_unit"], 64);
    engine.submit(greedy_request("after", prompt, 8));
    engine.run();
    EXPECT_LE(engine.reply("after").cached_tokens, report["mismatch"]["position"].get<int64_t>());
    EXPECT_EQ(engine.reply("after").tokens, alone(model(), greedy_request("", prompt, 8)));
    EXPECT_EQ(engine->metrics().verify_failed, 1);
  }

  std::unique_ptr<LoadedModel> model_ = test::load_model(test::tiny_dir());
  test::TempFolder folder_;
  const std::string dir_ = folder_.path();
  std::vector<std::string> events_;
};

TEST_F(ServingVerifyTest, SoundHitsPassWhateverComputedThem) {
  // Prompts over prefill, over the decode of the last turn, and over both; several at once.
  Engine engine(model(), options());
  std::vector<Tokens> history;
  for (uint64_t c = 0; c < 3; ++c) history.push_back(joined(random_prompt(100, 1), random_prompt(20, 10 + c)));
  for (int turn = 0; turn < 4; ++turn) {
    for (size_t c = 0; c < history.size(); ++c) engine.submit(greedy_request(cat(c, "-", turn), history[c], 50));
    engine.run();
    for (size_t c = 0; c < history.size(); ++c) {
      history[c] = joined(joined(history[c], engine.reply(cat(c, "-", turn)).tokens), random_prompt(9, 30 + c));
    }
  }
  const EngineMetrics metrics = engine->metrics();
  EXPECT_EQ(metrics.verify_failed, 0) << engine->health().problem;
  EXPECT_GE(metrics.verify_done, 9);  // every later turn, at least
  EXPECT_EQ(metrics.verify_done + metrics.verify_skipped, metrics.verify_hits);
  EXPECT_GT(metrics.verify_seconds, 0);
  engine.expect_no_leak();
}

TEST_F(ServingVerifyTest, AShortGapIsNotIdleTime) {
  ServingOptions busy = options();
  busy.verify_quiet_seconds = 3600;
  busy.verify_busy_share = 0;
  Engine engine(model(), busy);
  for (const char* id : {"cold", "warm"}) {
    engine.submit(greedy_request(id, random_prompt(150, 1), 2));
    engine.run();
  }
  EXPECT_EQ(engine.reply("warm").cached_tokens, 128);
  EXPECT_EQ(engine->metrics().verify_hits, 1);
  EXPECT_FALSE(engine->step());  // it waits for a quiet hour
  EXPECT_EQ(engine->metrics().verify_done, 0);
  EXPECT_EQ(engine->metrics().verify_seconds, 0);
}

TEST_F(ServingVerifyTest, PreemptionsLeaveHitsThatPass) {
  ServingOptions tight = options();
  tight.cache_bytes = int64_t{56} * 73728;
  tight.scheduler.high_utilisation = 1;
  Engine engine(model(), tight);
  const auto prompt = [](int64_t i) { return joined(random_prompt(130, 1), random_prompt(100 + 2 * i, 2 + i)); };
  for (int64_t i = 0; i < 11; ++i) engine.submit(greedy_request(cat("r", i), prompt(i), 160));  // over two pages' ends
  engine.run();
  for (const char* time : {"second", "third"}) {
    for (int64_t i = 10; i >= 6; --i) {  // what is left of them, one after the other
      const Tokens turn = joined(joined(prompt(i), engine.reply(cat("r", i)).tokens), random_prompt(5, 3));
      engine.submit(greedy_request(cat(time, i), turn, 1));
      engine.run();
    }
  }
  for (const char* id : {"new", "new again"}) {
    engine.submit(greedy_request(id, random_prompt(100, 99), 1));
    engine.run();
  }
  const EngineMetrics metrics = engine->metrics();
  EXPECT_GT(metrics.preemptions, 0);
  EXPECT_EQ(metrics.verify_failed, 0) << engine->health().problem;
  EXPECT_GT(metrics.verify_done, 0);
  EXPECT_EQ(metrics.verify_done + metrics.verify_skipped, metrics.verify_hits);
  engine.expect_no_leak();
}

TEST_F(ServingVerifyTest, AFlippedBitOfASharedPageIsCaught) {
  Engine engine(model(), options());
  const Tokens prompt = random_prompt(300, 4);
  engine.submit(greedy_request("first", prompt, 1));
  engine.run();
  // A sequence that shares the pages, and writes where it must not.
  ASSERT_TRUE(engine->cache().admit(SeqId(1000), prompt, {}, 1).has_value());
  ASSERT_TRUE(engine->cache().prepare_step(SeqId(1000), 1));
  const CacheLayout& layout = engine->cache().layout();
  int64_t layer = 0;
  for (const LayerCache& each : engine->cache().view(SeqId(1000)).layers) {
    const auto* latent = std::get_if<MlaLatent>(&each);
    if (latent == nullptr) {
      ++layer;
      continue;
    }
    latent->pages[0][70 * layout.latent_row_bytes() + 5 * 4] ^= std::byte{1};
    break;
  }
  engine->cache().release(SeqId(1000));
  engine.submit(greedy_request("second", prompt, 1));
  engine.run();
  EXPECT_EQ(engine.reply("second").cached_tokens, 256);
  const auto report = nlohmann::json::parse(test::read_text(dir_ + "/verify-1.json"));
  EXPECT_EQ(report["mismatch"]["layer"], layer);
  EXPECT_EQ(report["mismatch"]["position"], 70);
  EXPECT_EQ(report["mismatch"]["element"], 5);
  expect_caught(engine, prompt, "mla_latent");
  // The unit in front of the wrong one is as good as it was, though no state was kept at its end.
  EXPECT_EQ(engine->explain("after", "").value().match.matched_tokens, 64);
  engine.expect_no_leak();
}

TEST_F(ServingVerifyTest, AStateThatWentWrongOnTheWayIsCaught) {
  Engine engine(model(), options());
  const Tokens prompt = random_prompt(150, 4);
  engine.submit(greedy_request("first", prompt, 1));
  engine->step();  // the first 96 tokens
  ASSERT_TRUE(engine->cache().prepare_step(SeqId(1), 1));
  LayerCache& first = engine->cache().view(SeqId(1)).layers[0];
  static_cast<float*>(std::get<KdaState>(first).recurrent)[17] += 1.f;
  engine.run();
  engine.submit(greedy_request("second", prompt, 1));
  engine.run();
  ASSERT_EQ(engine.reply("second").cached_tokens, 128);
  expect_caught(engine, prompt, "mla_latent");  // the first thing it spoilt, at the first row behind it
  engine.expect_no_leak();
}

TEST_F(ServingVerifyTest, ARequestThatArrivesTakesTheVerifiersMemory) {
  ServingOptions tight = options();
  tight.cache_bytes = int64_t{24} * 73728;
  Engine engine(model(), tight);
  const Tokens prompt = random_prompt(500, 4);
  engine.submit(greedy_request("first", prompt, 1));
  engine.submit(greedy_request("again", prompt, 1));
  while (!engine.is_idle() || engine->metrics().steps == 0) engine->step();
  engine.submit(greedy_request("second", prompt, 1));
  while (!engine.reply("second").finish) engine->step();
  engine->step();  // one chunk of its hit
  for (int64_t i = 0; i < 6; ++i) engine.submit(greedy_request(cat("r", i), random_prompt(400, 50 + i), 30));
  engine.run();
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(engine.reply(cat("r", i)).tokens.size(), 30u);
  const EngineMetrics metrics = engine->metrics();
  EXPECT_EQ(metrics.verify_failed, 0) << engine->health().problem;
  EXPECT_EQ(metrics.verify_done + metrics.verify_skipped, metrics.verify_hits);
  engine.expect_no_leak();
}

TEST_F(ServingVerifyTest, TheWantedShareIsSampled) {
  ServingOptions some = options();
  some.verify_rate = 0.25;
  some.verify_queue = 1000;
  Engine engine(model(), some);
  const Tokens prompt = random_prompt(70, 4);
  constexpr int64_t kHits = 200;
  for (int64_t i = 0; i <= kHits; ++i) {
    engine.submit(greedy_request(cat("r", i), prompt, 1));
    engine.run();
  }
  const EngineMetrics metrics = engine->metrics();
  EXPECT_EQ(metrics.verify_hits, kHits);
  // Six standard deviations of a binomial distribution.
  EXPECT_NEAR(static_cast<double>(metrics.verify_done), 0.25 * kHits, 6 * std::sqrt(kHits * 0.25 * 0.75));
  EXPECT_EQ(metrics.verify_failed, 0);
}

TEST_F(ServingVerifyTest, WhileRequestsRunTheBudgetHolds) {
  ServingOptions busy = options();
  busy.verify_busy_share = 0;
  Engine engine(model(), busy);
  const Tokens prompt = random_prompt(200, 4);
  engine.submit(greedy_request("long", random_prompt(5, 5), 60));
  for (int64_t i = 0; i < 4; ++i) {
    engine.submit(greedy_request(cat("r", i), prompt, 1));
    for (int step = 0; step < 8; ++step) engine->step();
  }
  ASSERT_FALSE(engine.reply("long").finish.has_value());
  EXPECT_GT(engine->metrics().verify_hits, 0);
  EXPECT_EQ(engine->metrics().verify_seconds, 0);
  engine.run();
  EXPECT_GT(engine->metrics().verify_done, 0);
}

TEST_F(ServingVerifyTest, AShareOfTheComputeTimeIsSpentAndKept) {
  ServingOptions shared = options();
  shared.verify_quiet_seconds = 3600;
  shared.verify_busy_share = 0.5;
  Engine engine(model(), shared);
  double longest_chunk = 0;
  const auto step = [&] {
    const EngineMetrics before = engine->metrics();
    const bool has_computed = engine->step();
    const EngineMetrics after = engine->metrics();
    const double chunk = after.verify_seconds - before.verify_seconds;
    longest_chunk = std::max(longest_chunk, chunk);
    if (chunk > 0) {  // it began within the share, by the clock of the engine itself
      EXPECT_LE(before.verify_seconds + Verifier::kMaxChunkSeconds, 0.5 * after.compute_seconds + 1e-9);
    }
    return has_computed;
  };
  // Of a small model it takes some requests until half of their time is enough for three proofs.
  constexpr int64_t kMostRequests = 5000;
  int64_t count = 0;
  while (engine->metrics().verify_done < 3 && count < kMostRequests) {
    engine.submit(greedy_request(cat("r", count++), random_prompt(200, 4), 20));
    while (step() || !engine.is_idle()) {
    }
  }
  const EngineMetrics metrics = engine->metrics();
  EXPECT_GE(metrics.verify_done, 3);
  EXPECT_EQ(metrics.verify_failed, 0) << engine->health().problem;
  EXPECT_GT(metrics.verify_seconds, 0);
  EXPECT_LE(metrics.verify_seconds, 0.5 * metrics.compute_seconds + longest_chunk);
}

}  // namespace
}  // namespace tandem

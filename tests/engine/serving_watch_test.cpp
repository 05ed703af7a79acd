// What the serving engine tells of its cache: states and sequences that it refuses to share, and audits while it
// serves.
#include <gmock/gmock.h>

#include <cmath>

#include "engine/serving_support.h"

namespace tandem {
namespace {

using test::alone;
using test::Engine;
using test::greedy_request;
using test::random_prompt;
using test::small_options;
using test::Tokens;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ServingWatchTest : public ::testing::Test {
 protected:
  LoadedModel& model() { return *model_; }
  ServingOptions options() {
    ServingOptions options = small_options();
    options.on_event = [this](const EngineEvent& event) {
      EXPECT_EQ(event.severity, EventSeverity::kError);
      events_.push_back(event.message);
    };
    return options;
  }
  // Computes the prompt past the engine, into its cache. The checkpoint nearest the end, in layer 0.
  KdaState write_checkpoint(Engine& engine, SeqId id, const Tokens& prompt) {
    HybridCache& cache = engine->cache();
    const auto length = static_cast<int64_t>(prompt.size());
    TANDEM_CHECK(cache.admit(id, prompt, {}, length) && cache.prepare_step(id, length), "room");
    StepPlan plan;
    plan.tokens = prompt;
    plan.sequences.push_back({.cache = 0,
                              .num_tokens = length,
                              .num_computed_tokens = 0,
                              .mode = StepMode::kPrefill,
                              .logits = LogitsWanted::kNone,
                              .captures = {}});
    std::vector<SequenceCacheView> views = {cache.view(id)};
    for (const PlannedCapture& capture : cache.captures(id)) {
      plan.sequences[0].captures.push_back(
          {.num_tokens = capture.num_tokens, .cache = static_cast<int64_t>(views.size())});
      views.push_back(capture.view);
    }
    TANDEM_CHECK(views.size() > 1, "a checkpoint is planned");
    TANDEM_CHECK(model().model().forward(model().exec(), plan, views).is_ok(), "a step");
    const KdaState written = std::get<KdaState>(views.back().layers[0]);
    TANDEM_CHECK(cache.commit_step(id, prompt).is_ok(), "a step");
    cache.release(id);
    return written;
  }

  std::unique_ptr<LoadedModel> model_ = test::load_model(test::tiny_dir());
  std::vector<std::string> events_;
};

TEST_F(ServingWatchTest, AStateThatChangedIsToldOnceAndNotUsed) {
  Engine engine(model(), options());
  const Tokens prompt = random_prompt(150, 4);
  const KdaState written = write_checkpoint(engine, SeqId(1000), prompt);
  static_cast<std::byte*>(written.recurrent)[5] ^= std::byte{1};
  for (const char* id : {"first", "second"}) {
    engine.submit(greedy_request(id, prompt, 4));
    engine.run();
    EXPECT_EQ(engine.reply(id).tokens, alone(model(), greedy_request("", prompt, 4)));
  }
  EXPECT_EQ(engine.reply("first").cached_tokens, 0);
  EXPECT_EQ(engine.reply("second").cached_tokens, 128);  // computed again since
  EXPECT_EQ(engine->metrics().refused_checkpoints, 1);
  EXPECT_EQ(engine->metrics().refused_non_finite, 0);
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_THAT(events_[0], HasSubstr("1 stored states changed"));
  engine.expect_no_leak();
}

TEST_F(ServingWatchTest, ASequenceThatIsNotFiniteIsTold) {
  Engine engine(model(), options());
  const Tokens prompt = random_prompt(300, 4);
  engine.submit(greedy_request("first", prompt, 1));
  engine->step();  // the first 96 tokens
  ASSERT_TRUE(engine->cache().prepare_step(SeqId(1), 1));
  LayerCache& first = engine->cache().view(SeqId(1)).layers[0];
  static_cast<float*>(std::get<KdaState>(first).recurrent)[17] = NAN;
  engine.run();
  EXPECT_EQ(engine.reply("first").finish, EngineFinish::kError);
  EXPECT_EQ(engine->metrics().refused_non_finite, 1);
  EXPECT_EQ(engine->metrics().refused_checkpoints, 0);
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_THAT(events_[0], HasSubstr("1 sequences hold states or latents that are not finite"));
  engine.submit(greedy_request("second", prompt, 4));
  engine.run();
  EXPECT_EQ(engine.reply("second").tokens, alone(model(), greedy_request("", prompt, 4)));
  engine.expect_no_leak();
}

TEST_F(ServingWatchTest, AuditsOfASoundCacheFindNothing) {
  ServingOptions audited = options();
  audited.audit_steps = 3;
  audited.verify_rate = 1;
  audited.cache_bytes = int64_t{56} * 73728;  // too little for all: some are preempted
  audited.scheduler.high_utilisation = 1;
  Engine engine(model(), audited);
  for (int64_t i = 0; i < 11; ++i) {
    EngineRequest request = greedy_request(
        cat("r", i), test::joined(random_prompt(130, 1), random_prompt(100 + 2 * i, 2 + static_cast<uint64_t>(i))),
        160);
    request.num_candidates = i == 0 ? 2 : 1;
    engine.submit(std::move(request));
  }
  engine.run();
  const EngineMetrics metrics = engine->metrics();
  EXPECT_GT(metrics.preemptions, 0);
  EXPECT_GE(metrics.audits, metrics.steps / 3);
  EXPECT_EQ(metrics.audits_failed, 0) << engine->health().problem;
  EXPECT_THAT(events_, IsEmpty());
}

TEST_F(ServingWatchTest, AuditsAreCountedInStepsAndOneComesWhenItFallsIdle) {
  ServingOptions audited = options();
  audited.audit_steps = 4;
  Engine engine(model(), audited);
  engine.submit(greedy_request("r", random_prompt(50, 1), 10));  // one step a token
  engine.run();
  EXPECT_EQ(engine->metrics().steps, 10);
  EXPECT_EQ(engine->metrics().audits, 3);  // after 4, 8, and the last
  EXPECT_FALSE(engine->step());
  EXPECT_EQ(engine->metrics().audits, 3);  // nothing has changed since

  Engine unwatched(model(), options());
  unwatched.submit(greedy_request("r", random_prompt(50, 1), 10));
  unwatched.run();
  EXPECT_EQ(unwatched->metrics().audits, 0);
}

TEST_F(ServingWatchTest, AnAuditThatFailsIsToldAndIsTheEnginesProblem) {
  ServingOptions audited = options();
  audited.audit_steps = 2;
  Engine engine(model(), audited);
  // A sequence whose state was rewritten by nobody's step.
  ASSERT_TRUE(engine->cache().admit(SeqId(1000), random_prompt(20, 7), {}, 20).has_value());
  ASSERT_TRUE(engine->cache().prepare_step(SeqId(1000), 20));
  ++std::get<KdaState>(engine->cache().view(SeqId(1000)).layers[0]).state_version;
  engine.submit(greedy_request("r", random_prompt(50, 1), 8));
  engine->step();
  EXPECT_EQ(engine->health().problem, "");
  engine.run();
  EXPECT_GT(engine->metrics().audits_failed, 1);
  ASSERT_EQ(events_.size(), 1u);  // the same finding is told once
  EXPECT_THAT(events_[0], HasSubstr("I1: sequence 1000: layer 0"));
  EXPECT_EQ(engine->health().problem, events_[0]);
  EXPECT_EQ(engine.reply("r").tokens.size(), 8u);  // the others are served
  engine->cache().release(SeqId(1000));
  engine.expect_no_leak();
}

TEST_F(ServingWatchTest, ANegativeNumberOfAuditStepsIsRefused) {
  ServingOptions wrong = options();
  wrong.audit_steps = -1;
  const auto engine = ServingEngine::create(model(), wrong);
  EXPECT_EQ(engine.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(engine.status().message(), HasSubstr("audit steps is -1"));
}

}  // namespace
}  // namespace tandem

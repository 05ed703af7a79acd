// What the serving engine tells of its cache: states and sequences that it refuses to share.
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

}  // namespace
}  // namespace tandem

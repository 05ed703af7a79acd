// ServingEngine as a service: what it refuses, what ends a request, log-probabilities, explanations, faults, drain.
#include <gmock/gmock.h>

#include <array>
#include <numeric>

#include "engine/poisoned_model.h"
#include "engine/serving_support.h"
#include "sample/logprobs.h"

namespace tandem {
namespace {

using test::alone;
using test::Engine;
using test::greedy_request;
using test::joined;
using test::random_prompt;
using test::Reply;
using test::seeded_request;
using test::small_options;
using test::Tokens;
using ::testing::HasSubstr;

class ServingServiceTest : public ::testing::Test {
 protected:
  LoadedModel& model() { return *model_; }

  // Logits of every row of the prompt.
  std::vector<std::vector<float>> all_logits(const Tokens& prompt) {
    SequenceCache cache(model().cache_layout());
    TANDEM_CHECK(cache.reserve(static_cast<int64_t>(prompt.size())).is_ok(), "room");
    StepPlan plan;
    plan.tokens = prompt;
    plan.sequences.push_back({.cache = 0,
                              .num_tokens = static_cast<int64_t>(prompt.size()),
                              .num_computed_tokens = 0,
                              .mode = StepMode::kPrefill,
                              .logits = LogitsWanted::kAll,
                              .captures = {}});
    const std::array<SequenceCacheView, 1> views = {cache.view()};
    const auto logits = model().model().forward(model().exec(), plan, views);
    TANDEM_CHECK(logits.is_ok(), logits.status().message());
    std::vector<std::vector<float>> rows;
    for (int64_t i = 0; i < logits.value().shape[0]; ++i) {
      rows.emplace_back(logits.value().row(i), logits.value().row(i) + logits.value().shape[1]);
    }
    return rows;
  }

  std::unique_ptr<LoadedModel> model_ = test::load_model(test::tiny_dir());
};

TEST_F(ServingServiceTest, RefusesWhatItCannotRunAndSaysWhy) {
  ServingOptions options = small_options();
  options.context_limit = 100;
  Engine engine(model(), options);
  const auto refused = [&](auto change, StatusCode code, const std::string& words) {
    EngineRequest request = greedy_request("x", random_prompt(10, 1), 5);
    change(request);
    const Status status = engine->submit(request, [](EngineOutput&&) { FAIL() << "a refused request has no output"; });
    EXPECT_EQ(status.code(), code) << words;
    EXPECT_THAT(status.message(), HasSubstr(words));
  };
  const StatusCode invalid = StatusCode::kInvalidArgument;
  refused([](EngineRequest& r) { r.id = ""; }, invalid, "no id");
  refused([](EngineRequest& r) { r.prompt.clear(); }, invalid, "prompt is empty");
  refused([](EngineRequest& r) { r.prompt = random_prompt(100, 1); }, invalid, "expected at most 99");
  refused([](EngineRequest& r) { r.prompt[3] = TokenId(384); }, invalid, "prompt token 3 is 384");
  refused([](EngineRequest& r) { r.stop_tokens = {TokenId(-1)}; }, invalid, "stop token 0 is -1");
  refused([](EngineRequest& r) { r.max_tokens = 0; }, invalid, "max tokens is 0");
  refused([](EngineRequest& r) { r.min_tokens = 6; }, invalid, "min tokens is 6");
  refused([](EngineRequest& r) { r.num_candidates = 0; }, invalid, "candidates");
  refused([](EngineRequest& r) { r.logprobs = 21; }, invalid, "logprobs is 21");
  refused([](EngineRequest& r) { r.sampling.temperature = 3; }, invalid, "temperature");
  engine.submit(greedy_request("x", random_prompt(10, 1), 5));
  refused([](EngineRequest&) {}, invalid, "is taken");
  engine.run();
  refused([](EngineRequest&) {}, invalid, "is taken");  // remembered
  engine.expect_no_leak();
}

TEST_F(ServingServiceTest, AFullQueueRefusesAndTakesAgainLater) {
  ServingOptions options = small_options();
  options.scheduler.max_waiting = 3;
  Engine engine(model(), options);
  for (const char* id : {"a", "b", "c"}) engine.submit(greedy_request(id, random_prompt(5, 1), 2));
  EngineRequest late = greedy_request("d", random_prompt(5, 1), 2);
  EXPECT_EQ(engine->submit(late, [](EngineOutput&&) {}).code(), StatusCode::kResourceExhausted);
  engine->step();
  engine.submit(late);
  engine.run();
  EXPECT_EQ(engine.reply("d").tokens.size(), 2u);
}

TEST_F(ServingServiceTest, MaxTokensAreClampedToTheContext) {
  ServingOptions options = small_options();
  options.context_limit = 50;
  Engine engine(model(), options);
  engine.submit(greedy_request("x", random_prompt(44, 1), 100));
  engine.run();
  EXPECT_EQ(engine.reply("x").tokens.size(), 6u);
  EXPECT_EQ(engine.reply("x").finish, EngineFinish::kLength);
  EXPECT_EQ(engine->facts().context_limit, 50);
}

TEST_F(ServingServiceTest, StopTokensEndACandidateAndAreDeliveredButNotBeforeMinTokens) {
  const Tokens prompt = random_prompt(30, 5);
  const Tokens free = alone(model(), greedy_request("", prompt, 12));
  Engine engine(model());
  EngineRequest stopped = greedy_request("stopped", prompt, 12);
  stopped.stop_tokens = {free[4], free[4]};
  engine.submit(stopped);
  EngineRequest held = stopped;
  held.id = "held";
  held.min_tokens = 9;
  held.logprobs = 2;
  engine.submit(held);
  engine.run();
  const auto first = std::find(free.begin(), free.end(), free[4]) - free.begin();
  EXPECT_EQ(engine.reply("stopped").tokens, Tokens(free.begin(), free.begin() + first + 1));
  EXPECT_EQ(engine.reply("stopped").finish, EngineFinish::kStop);
  const Reply reply = engine.reply("held");
  ASSERT_GE(reply.tokens.size(), 9u);
  EXPECT_EQ(Tokens(reply.tokens.begin(), reply.tokens.begin() + first), Tokens(free.begin(), free.begin() + first));
  for (size_t i = 0; i < 9; ++i) EXPECT_NE(reply.tokens[i], free[4]) << i;
  // Log-probabilities are of the logits as they were: the held-back token stays the best.
  EXPECT_EQ(reply.outputs[static_cast<size_t>(first)].top[0].token, free[4]);
}

TEST_F(ServingServiceTest, LogprobsAreThoseOfTheRawLogits) {
  const Tokens prompt = random_prompt(70, 6);
  Engine engine(model());
  EngineRequest request = seeded_request("x", prompt, 6, 11);
  request.sampling.logit_bias = {{TokenId(3), 2.f}};
  request.logprobs = 4;
  engine.submit(request);
  engine.run();
  const Reply reply = engine.reply("x");
  ASSERT_EQ(reply.tokens.size(), 6u);
  const auto rows = all_logits(joined(prompt, reply.tokens));
  for (size_t i = 0; i < 6; ++i) {
    const auto& logits = rows[prompt.size() - 1 + i];
    std::vector<TokenLogprob> top;
    ASSERT_TRUE(top_logprobs(logits, 4, top).is_ok());
    // Prefill here, decode there: equal within ADR 0002's tolerance of a whole model.
    EXPECT_NEAR(*reply.outputs[i].logprob, token_logprob(logits, reply.tokens[i]).value(), 5e-4) << i;
    ASSERT_EQ(reply.outputs[i].top.size(), 4u);
    for (size_t k = 0; k < 4; ++k) EXPECT_NEAR(reply.outputs[i].top[k].logprob, top[k].logprob, 5e-4);
  }
}

TEST_F(ServingServiceTest, PromptLogprobsCoverThePromptAndUseNoCache) {
  const Tokens prompt = random_prompt(150, 6);  // two steps
  Engine engine(model());
  engine.submit(greedy_request("warm", prompt, 1));
  engine.run();
  EngineRequest request = greedy_request("x", prompt, 3);
  request.prompt_logprobs = true;
  request.logprobs = 2;
  engine.submit(request);
  EngineRequest scored = request;  // scored and not continued
  scored.id = "scored";
  scored.max_tokens = 0;
  engine.submit(scored);
  engine.run();
  const auto rows = all_logits(prompt);
  for (const char* id : {"x", "scored"}) {
    const Reply reply = engine.reply(id);
    EXPECT_EQ(reply.cached_tokens, 0);
    EXPECT_EQ(reply.finish, EngineFinish::kLength);
    ASSERT_EQ(reply.prompt.size(), prompt.size());
    EXPECT_EQ(reply.prompt[0].token, prompt[0]);
    EXPECT_FALSE(reply.prompt[0].logprob.has_value());
    for (size_t i = 1; i < prompt.size(); ++i) {
      EXPECT_EQ(reply.prompt[i].token, prompt[i]);
      EXPECT_EQ(*reply.prompt[i].logprob, token_logprob(rows[i - 1], prompt[i]).value()) << i;
      EXPECT_EQ(reply.prompt[i].top.size(), 2u);
    }
  }
  EXPECT_EQ(engine.reply("x").tokens, alone(model(), greedy_request("", prompt, 3)));
  EXPECT_TRUE(engine.reply("scored").tokens.empty());
  EngineRequest one = greedy_request("one", {prompt[0]}, 1);  // a prompt of one token
  one.prompt_logprobs = true;
  engine.submit(one);
  engine.run();
  ASSERT_EQ(engine.reply("one").prompt.size(), 1u);
  EXPECT_EQ(engine.reply("one").prompt[0].token, prompt[0]);
  EXPECT_FALSE(engine.reply("one").prompt[0].logprob.has_value());
  engine.expect_no_leak();
}

// The prompt is computed again for candidates that found no place beside the others; what it said was delivered before.
TEST_F(ServingServiceTest, PromptLogprobsOfMoreCandidatesThanRun) {
  ServingOptions options = small_options();
  options.scheduler.max_running = 2;
  Engine engine(model(), options);
  const Tokens prompt = random_prompt(40, 6);
  EngineRequest request = greedy_request("x", prompt, 5);
  request.prompt_logprobs = true;
  request.logprobs = 1;
  request.num_candidates = 5;
  engine.submit(request);
  engine.run();
  const Tokens expected = alone(model(), greedy_request("", prompt, 5));
  for (int64_t c = 0; c < 5; ++c) EXPECT_EQ(engine.reply("x", c).tokens, expected) << c;
  EXPECT_EQ(engine.reply("x").prompt.size(), prompt.size());
  engine.expect_no_leak();
}

TEST_F(ServingServiceTest, ExplanationsAreForTheOwnerAndRememberedForAWhile) {
  ServingOptions options = small_options();
  options.remembered_requests = 2;
  Engine engine(model(), options);
  const Tokens prompt = random_prompt(200, 8);
  for (const char* id : {"a", "b", "c"}) {
    EngineRequest request = greedy_request(id, prompt, 2);
    request.scope = {.salt = "salt", .owner = "mine"};
    engine.submit(request);
    EXPECT_EQ(engine->explain(id, "mine").status().code(), StatusCode::kNotFound);  // not scheduled
    engine.run();
  }
  const auto b = engine->explain("b", "mine");
  ASSERT_TRUE(b.is_ok()) << b.status().message();
  EXPECT_EQ(b.value().match.hit_tokens, 192);
  EXPECT_EQ(b.value().prompt, prompt);
  EXPECT_EQ(b.value().salt_used, "set");
  EXPECT_GT(b.value().prefill_token_seconds, 0);
  EXPECT_EQ(engine->explain("b", "yours").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(engine->explain("a", "mine").status().code(), StatusCode::kNotFound);  // pushed out
  engine.submit(greedy_request("a", prompt, 1));                                   // its id is free again
  engine.run();

  Tokens edited = prompt;
  edited[100] = TokenId(edited[100].value == 1 ? 2 : 1);
  const auto lint = engine->lint(edited, {.salt = "salt", .owner = "mine"});
  ASSERT_TRUE(lint.is_ok());
  ASSERT_TRUE(lint.value().match.divergence.has_value());
  EXPECT_EQ(lint.value().match.divergence->position, 100);
  EXPECT_EQ(lint.value().match.divergence->expected, prompt[100]);
  EXPECT_EQ(lint.value().prompt, edited);
  EXPECT_EQ(engine->lint(prompt, {.salt = "other", .owner = ""}).value().match.hit_tokens, 0);
  EXPECT_EQ(engine->lint({}, {}).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(ServingServiceTest, LogitsThatAreNoNumbersEndTheirRequestAlone) {
  // Field report 2: the others go on, nothing of it is found again, and the same memory then serves others.
  constexpr int32_t kBad = 77;
  const test::PoisonedModel poisoned("k3-tiny", kBad);
  const auto bad_model = test::load_model(poisoned.dir());
  Engine engine(*bad_model);
  const auto without = [](Tokens tokens) {
    for (TokenId& token : tokens) {
      if (token.value == kBad) token = TokenId(kBad + 1);
    }
    return tokens;
  };
  const Tokens stem = without(random_prompt(128, 12));
  Tokens bad = joined(stem, without(random_prompt(150, 13)));
  bad[140] = TokenId(kBad);
  std::vector<EngineRequest> good;
  for (int64_t i = 0; i < 8; ++i) {
    good.push_back(greedy_request(cat("good", i), joined(stem, without(random_prompt(9 + i, 20 + i))), 8));
    good.back().sampling.logit_bias = {{TokenId(kBad), -INFINITY}};
  }
  for (int round = 0; round < 2; ++round) {
    engine.submit(greedy_request(cat("bad", round), bad, 8));
    for (EngineRequest& request : good) {
      request.id += "'";
      engine.submit(request);
      engine->step();
    }
    engine.run();
    const Reply reply = engine.reply(cat("bad", round));
    EXPECT_EQ(reply.finish, EngineFinish::kError);
    EXPECT_EQ(reply.error.code(), StatusCode::kNonFinite) << reply.error.message();
    EXPECT_TRUE(reply.tokens.empty());
    for (const EngineRequest& request : good) {
      EXPECT_EQ(engine.reply(request.id).tokens, alone(*bad_model, request)) << request.id;
    }
    engine.expect_no_leak();
  }
}

TEST_F(ServingServiceTest, AFailedStepEndsTheRequestsInItAndTheEngineGoesOn) {
  std::vector<std::string> events;
  ServingOptions options = small_options();
  options.on_event = [&](const EngineEvent& event) { events.push_back(event.message); };
  Engine engine(model(), options);
  engine.submit(greedy_request("a", random_prompt(20, 1), 50));
  engine.submit(greedy_request("b", random_prompt(20, 2), 50));
  for (int i = 0; i < 4; ++i) engine->step();
  // A state that says it is elsewhere: the model refuses the step.
  ASSERT_TRUE(engine->cache().prepare_step(SeqId(1), 1));
  for (LayerCache& layer : engine->cache().view(SeqId(1)).layers) {
    if (auto* state = std::get_if<KdaState>(&layer)) state->position = kStateInFlight;
  }
  engine->step();
  for (const char* id : {"a", "b"}) {
    EXPECT_EQ(engine.reply(id).finish, EngineFinish::kError);
    EXPECT_THAT(engine.reply(id).error.message(), HasSubstr("the step that computed it failed"));
  }
  EXPECT_EQ(events.size(), 1u);
  engine.expect_no_leak();
  engine.submit(greedy_request("c", random_prompt(20, 1), 10));
  engine.run();
  EXPECT_EQ(engine.reply("c").tokens, alone(model(), greedy_request("", random_prompt(20, 1), 10)));
}

TEST_F(ServingServiceTest, OptionsOutsideTheirRangeAreRefusedByName) {
  const auto refused = [&](auto change, const std::string& words) {
    ServingOptions options = small_options();
    change(options);
    const auto made = ServingEngine::create(model(), options);
    ASSERT_FALSE(made.is_ok()) << words;
    EXPECT_THAT(made.status().message(), HasSubstr(words));
  };
  refused([](ServingOptions& o) { o.verify_rate = 1.5; }, "verify rate is 1.5");
  refused([](ServingOptions& o) { o.swap_bytes = -1; }, "swap space is -1");
  refused([](ServingOptions& o) { o.context_limit = 1; }, "context limit");
  refused([](ServingOptions& o) { o.hash_unit = 100; }, "100");
  refused([](ServingOptions& o) { o.cache_bytes = 1000; }, "1000");
}

}  // namespace
}  // namespace tandem

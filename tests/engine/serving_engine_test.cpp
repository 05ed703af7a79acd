// ServingEngine: a request gives the same tokens whatever runs beside it, was cached before it or takes its memory.
#include <gmock/gmock.h>

#include <numeric>

#include "engine/serving_support.h"

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

class ServingEngineTest : public ::testing::Test {
 protected:
  LoadedModel& model() { return *model_; }

  std::unique_ptr<LoadedModel> model_ = test::load_model(test::tiny_dir());
};

// Stems around units and pages, tails of their own; half of them sampled.
std::vector<EngineRequest> mixed_requests(int64_t count) {
  std::vector<EngineRequest> requests;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t stem = std::vector<int64_t>{0, 63, 64, 65, 128, 192}[static_cast<size_t>(i % 6)];
    const Tokens prompt =
        joined(random_prompt(stem, 7), random_prompt(1 + i * 13 % 70, 100 + static_cast<uint64_t>(i)));
    const std::string id = cat("r", i);
    requests.push_back(i % 2 == 0 ? greedy_request(id, prompt, 12) : seeded_request(id, prompt, 12, 40 + i));
    requests.back().priority = static_cast<int32_t>(i % 3);
  }
  return requests;
}

TEST_F(ServingEngineTest, ConcurrentRequestsGiveWhatEachGivesAlone) {
  Engine engine(model());
  const std::vector<EngineRequest> requests = mixed_requests(24);
  for (const EngineRequest& request : requests) {
    engine.submit(request);
    engine->step();  // arrivals between steps
  }
  engine.run();
  for (const EngineRequest& request : requests) {
    const Reply reply = engine.reply(request.id);
    EXPECT_EQ(reply.finish, EngineFinish::kLength) << request.id;
    EXPECT_EQ(reply.tokens, alone(model(), request)) << request.id;
    EXPECT_FALSE(reply.heard_after_finish);
    EXPECT_LE(reply.times.arrived, reply.times.scheduled);
    EXPECT_LE(reply.times.scheduled, reply.times.first_token);
    EXPECT_LE(reply.times.first_token, reply.times.finished);
  }
  const EngineMetrics metrics = engine->metrics();
  EXPECT_EQ(metrics.generated_tokens, 24 * 12);
  EXPECT_GT(metrics.prefix_hit_tokens, 0);
  EXPECT_EQ(std::accumulate(metrics.steps_by_tokens.begin(), metrics.steps_by_tokens.end(), int64_t{0}), metrics.steps);
  engine.expect_no_leak();
}

TEST_F(ServingEngineTest, TurnsOfAConversationAreTakenFromTheCacheAndGiveTheSame) {
  Engine engine(model());
  Tokens history = random_prompt(150, 3);
  int64_t cached = 0;
  for (int turn = 0; turn < 5; ++turn) {
    const EngineRequest request = greedy_request(cat("turn", turn), history, 40);
    engine.submit(request);
    engine.run();
    const Reply reply = engine.reply(request.id);
    EXPECT_EQ(reply.tokens, alone(model(), request)) << "turn " << turn;
    EXPECT_GE(reply.cached_tokens, cached);
    const int64_t least = turn == 0 ? 0 : static_cast<int64_t>(history.size()) - 30 - 2 * 64;
    EXPECT_GE(reply.cached_tokens, least);
    cached = reply.cached_tokens;
    history = joined(joined(std::move(history), reply.tokens), random_prompt(30, 50 + turn));
  }
  engine.expect_no_leak();
}

TEST_F(ServingEngineTest, TwoIdenticalRequestsAtOnceAreBothRight) {
  Engine engine(model());
  const Tokens prompt = random_prompt(200, 9);
  engine.submit(greedy_request("a", prompt, 10));
  engine.submit(greedy_request("b", prompt, 10));
  engine.run();
  const Tokens expected = alone(model(), greedy_request("", prompt, 10));
  EXPECT_EQ(engine.reply("a").tokens, expected);
  EXPECT_EQ(engine.reply("b").tokens, expected);
  engine.submit(greedy_request("c", prompt, 10));
  engine.run();
  EXPECT_EQ(engine.reply("c").tokens, expected);
  EXPECT_EQ(engine.reply("c").cached_tokens, 192);
  engine.expect_no_leak();
}

// A pool that holds a few sequences: the rest waits, is swapped out or computed again.
class ServingPreemptionTest : public ServingEngineTest, public ::testing::WithParamInterface<double> {};

TEST_P(ServingPreemptionTest, AShortageOfMemoryChangesNoToken) {
  ServingOptions options = small_options();
  options.cache_bytes = int64_t{16} * 73728;  // five sequences that have just begun, three at their end
  options.scheduler.swap_bytes_per_second = GetParam();
  options.scheduler.high_utilisation = 1;
  Engine engine(model(), options);
  std::vector<EngineRequest> requests;
  for (int64_t i = 0; i < 6; ++i) {
    requests.push_back(greedy_request(cat("r", i), random_prompt(100 + 4 * i, 500 + static_cast<uint64_t>(i)), 160));
    engine.submit(requests.back());
  }
  int64_t most_swapped = 0;
  while (engine->step()) most_swapped = std::max(most_swapped, engine->metrics().swapped);
  EXPECT_TRUE(engine.is_idle());
  EXPECT_GT(engine->metrics().preemptions, 0);
  EXPECT_EQ(most_swapped > 0, GetParam() > 1);
  for (const EngineRequest& request : requests) {
    EXPECT_EQ(engine.reply(request.id).tokens, alone(model(), request)) << request.id;
  }
  engine.expect_no_leak();
}

INSTANTIATE_TEST_SUITE_P(Bandwidth, ServingPreemptionTest, ::testing::Values(1e-3, 1e15),
                         [](const auto& test) { return test.param < 1 ? "ComputedAgain" : "Swapped"; });

TEST_F(ServingEngineTest, CancelAtEveryStepReturnsTheMemory) {
  const Tokens prompt = random_prompt(400, 21);
  const Tokens expected = alone(model(), greedy_request("", prompt, 6));
  for (int64_t step = 0; step < 14; ++step) {
    Engine engine(model());
    engine.submit(greedy_request("other", random_prompt(40, 22), 20));
    engine.submit(greedy_request("gone", prompt, 6));
    for (int64_t i = 0; i < step; ++i) engine->step();
    const bool was_finished = engine.reply("gone").finish.has_value();
    engine->cancel("gone");
    engine->cancel("gone");     // twice is once
    engine->cancel("unknown");  // nothing
    engine->step();
    const Reply reply = engine.reply("gone");
    ASSERT_TRUE(reply.finish.has_value()) << "within one step";
    EXPECT_EQ(reply.finish, was_finished ? EngineFinish::kLength : EngineFinish::kAbort) << step;
    engine.run();
    EXPECT_EQ(engine.reply("gone").tokens.size(), reply.tokens.size());
    EXPECT_EQ(engine.reply("other").tokens.size(), 20u);
    engine.expect_no_leak();
    // What a cancelled prefill left behind is right.
    engine.submit(greedy_request("again", prompt, 6));
    engine.run();
    EXPECT_EQ(engine.reply("again").tokens, expected) << "after a cancel before step " << step;
    engine.expect_no_leak();
  }
}

TEST_F(ServingEngineTest, CandidatesShareThePromptAndDrawFromStreamsOfTheirOwn) {
  const Tokens prompt = random_prompt(130, 31);
  std::vector<Tokens> first;
  for (const int64_t running : {16, 2}) {  // all at once, and those without a place waiting
    ServingOptions options = small_options();
    options.scheduler.max_running = running;
    options.share_prefixes = running == 16;
    Engine engine(model(), options);
    EngineRequest request = seeded_request("n", prompt, 15, 77);
    request.num_candidates = 4;
    engine.submit(request);
    engine.submit(greedy_request("beside", random_prompt(50, 32), 10));
    engine.run();
    EXPECT_EQ(engine->metrics().prompt_tokens, 130 + 50);
    std::vector<Tokens> replies;
    for (int64_t c = 0; c < 4; ++c) {
      EXPECT_EQ(engine.reply("n", c).finish, EngineFinish::kLength);
      replies.push_back(engine.reply("n", c).tokens);
    }
    EXPECT_EQ(replies[0], alone(model(), seeded_request("", prompt, 15, 77)));
    for (size_t a = 0; a < 4; ++a) {
      for (size_t b = a + 1; b < 4; ++b) EXPECT_NE(replies[a], replies[b]);
    }
    if (first.empty()) first = replies;
    EXPECT_EQ(replies, first);
    engine.expect_no_leak();
  }
}

TEST_F(ServingEngineTest, OneCandidateIsCancelledWithoutTheOthers) {
  for (const int64_t steps : {0, 1, 2, 5}) {
    for (const int64_t candidate : {0, 2}) {
      Engine engine(model());
      EngineRequest request = seeded_request("n", random_prompt(100, 31), 15, 77);
      request.num_candidates = 3;
      engine.submit(request);
      for (int64_t i = 0; i < steps; ++i) engine->step();
      engine->cancel("n", candidate);
      engine.run();
      for (int64_t c = 0; c < 3; ++c) {
        const EngineFinish expected = c == candidate ? EngineFinish::kAbort : EngineFinish::kLength;
        EXPECT_EQ(engine.reply("n", c).finish, expected) << steps << " " << candidate << " " << c;
      }
      engine.expect_no_leak();
    }
  }
}

TEST_F(ServingEngineTest, DisconnectAtEveryChunkBoundaryReturnsTheMemory) {
  // Field report 34: a client that leaves in the middle of a prefill, with and without a shared page in use.
  Engine engine(model());
  const Tokens stem = random_prompt(128, 41);
  engine.submit(greedy_request("stem", joined(stem, random_prompt(5, 42)), 1));
  engine.run();
  for (int64_t chunk = 0; chunk < 6; ++chunk) {
    const std::string id = cat("d", chunk);
    engine.submit(greedy_request(cat("live", chunk), joined(stem, random_prompt(30, 60 + chunk)), 30));
    engine.submit(greedy_request(id, joined(stem, random_prompt(450, 70 + chunk)), 4));
    for (int64_t i = 0; i < chunk; ++i) engine->step();
    engine->cancel(id);
    engine.run();
    EXPECT_EQ(engine.reply(id).finish, EngineFinish::kAbort);
    EXPECT_EQ(engine.reply(cat("live", chunk)).tokens.size(), 30u);
    engine.expect_no_leak();
  }
}

TEST_F(ServingEngineTest, NanoThroughTheWholeEngine) {
  const auto nano = test::load_model(test::data_path("../../models/nano"));
  const Tokenizer& tokenizer = *nano->tokenizer().value();
  ServingOptions options = small_options();
  options.cache_bytes = int64_t{64} << 20;
  options.hash_unit = 128;
  options.scheduler.token_budget = 256;
  options.verify_rate = 1;
  Engine engine(*nano, options);
  std::string text;
  for (int i = 0; i < 12; ++i) text += "Prefix caches of recurrent models keep states where a conversation may go on. ";
  const Tokens stem = tokenizer.encode_text(text);
  ASSERT_GT(stem.size(), 128u);
  std::vector<EngineRequest> requests;
  for (const char* question : {" One", " Another", " Why"}) {
    requests.push_back(greedy_request(cat("q", question), joined(stem, tokenizer.encode_text(question)), 8));
    engine.submit(requests.back());
    engine.run();
  }
  for (const EngineRequest& request : requests) {
    EXPECT_EQ(engine.reply(request.id).tokens, alone(*nano, request)) << request.id;
  }
  EXPECT_GT(engine.reply("q Why").cached_tokens, 0);
  const EngineMetrics metrics = engine->metrics();
  EXPECT_GT(metrics.verify_done, 0);
  EXPECT_EQ(metrics.verify_failed, 0) << engine->health().problem;
  engine.expect_no_leak();
}

}  // namespace
}  // namespace tandem

// Deterministic serving: a request's tokens and log-probabilities are, bit for bit, those it has alone in an empty
// engine, whatever is cached, runs beside it, is preempted, or was split.
#include <gtest/gtest.h>

#include <cstring>

#include "engine/serving_support.h"

namespace tandem {
namespace {

using test::Engine;
using test::joined;
using test::random_prompt;
using test::Reply;
using test::small_options;
using test::Tokens;

constexpr int64_t kTurnTokens = 70;  // a reply over a hash unit and several pages' ends

EngineRequest sampled_request(std::string id, Tokens prompt, int64_t max_tokens, uint64_t seed) {
  EngineRequest request = test::seeded_request(std::move(id), std::move(prompt), max_tokens, seed);
  request.logprobs = 2;
  return request;
}

// Equal tokens, and log-probabilities equal in every bit.
void expect_same_bits(const Reply& found, const Reply& expected, const std::string& what) {
  ASSERT_EQ(found.tokens, expected.tokens) << what;
  ASSERT_EQ(found.outputs.size(), expected.outputs.size()) << what;
  for (size_t i = 0; i < found.outputs.size(); ++i) {
    const TokenOutput& a = found.outputs[i];
    const TokenOutput& b = expected.outputs[i];
    ASSERT_TRUE(a.logprob && b.logprob) << what;
    ASSERT_EQ(std::memcmp(&*a.logprob, &*b.logprob, sizeof(float)), 0)
        << what << ", token " << i << ": " << *a.logprob << " instead of " << *b.logprob;
    ASSERT_EQ(a.top.size(), b.top.size()) << what;
    for (size_t t = 0; t < a.top.size(); ++t) {
      ASSERT_EQ(a.top[t].token, b.top[t].token) << what;
      ASSERT_EQ(std::memcmp(&a.top[t].logprob, &b.top[t].logprob, sizeof(float)), 0) << what << ", token " << i;
    }
  }
}

class ServingDeterministicTest : public ::testing::Test {
 protected:
  static ServingOptions options() {
    ServingOptions options = small_options();
    options.deterministic = true;
    return options;
  }
  Reply run_alone(const EngineRequest& request) {
    Engine engine(*model_, options());
    engine.submit(request);
    engine.run();
    return engine.reply(request.id);
  }
  // Turns of four conversations on one stem, all at once; every reply judged against the same request alone. The
  // metrics of the engine that served them.
  EngineMetrics expect_turns_as_alone(const ServingOptions& serving, int turns) {
    Engine engine(*model_, serving);
    std::vector<Tokens> history;
    for (uint64_t c = 0; c < 4; ++c)
      history.push_back(joined(random_prompt(140, 1), random_prompt(25 + 7 * c, 10 + c)));
    for (int turn = 0; turn < turns; ++turn) {
      std::vector<EngineRequest> requests;
      for (size_t c = 0; c < history.size(); ++c) {
        requests.push_back(sampled_request(cat(c, "-", turn), history[c], kTurnTokens, 100 * c + turn));
        engine.submit(requests.back());
      }
      engine.run();
      for (size_t c = 0; c < history.size(); ++c) {
        const Reply reply = engine.reply(requests[c].id);
        expect_same_bits(reply, run_alone(requests[c]), requests[c].id);
        if (HasFatalFailure()) return {};
        history[c] = joined(joined(history[c], reply.tokens), random_prompt(11, 30 + c));
      }
    }
    engine.expect_no_leak();
    return engine->metrics();
  }
  // Replies over two pages' ends, in a pool that holds them all only at first.
  void expect_preempted_as_alone(int64_t swap_bytes) {
    ServingOptions tight = options();
    tight.cache_bytes = int64_t{56} * 73728;
    tight.scheduler.high_utilisation = 1;
    tight.swap_bytes = swap_bytes;
    Engine engine(*model_, tight);
    std::vector<EngineRequest> requests;
    for (uint64_t i = 0; i < 11; ++i) {
      const auto own = static_cast<int64_t>(100 + 2 * i);
      const Tokens prompt = joined(random_prompt(130, 1), random_prompt(own, 2 + i));
      requests.push_back(sampled_request(cat("r", i), prompt, 160, i));
      engine.submit(requests.back());
    }
    engine.run();
    EXPECT_GT(engine->metrics().preemptions, 0);
    for (const EngineRequest& request : requests) {
      expect_same_bits(engine.reply(request.id), run_alone(request), request.id);
      if (HasFatalFailure()) return;
    }
    engine.expect_no_leak();
  }

  std::unique_ptr<LoadedModel> model_ = test::load_model(test::tiny_dir());
};

TEST_F(ServingDeterministicTest, TurnsThatHitAreAsAlone) {
  const EngineMetrics metrics = expect_turns_as_alone(options(), 4);
  EXPECT_GT(metrics.prefix_hit_tokens, 0);
  EXPECT_EQ(metrics.preemptions, 0);
}

TEST_F(ServingDeterministicTest, PreemptedAndSwappedSequencesAreAsAlone) {
  expect_preempted_as_alone(int64_t{1} << 30);
}

// Without room to swap, what was generated is computed again: as decodes, not as a prompt.
TEST_F(ServingDeterministicTest, PreemptedAndRecomputedSequencesAreAsAlone) { expect_preempted_as_alone(0); }

TEST_F(ServingDeterministicTest, AnotherSplitOfTheStepsChangesNothing) {
  ServingOptions split = options();
  split.scheduler.max_running = 4;
  for (const int64_t token_budget : {17, 48, 512}) {
    split.scheduler.token_budget = token_budget;
    expect_turns_as_alone(split, 2);
  }
}

// What was generated is not what a later prompt with the same tokens hits: a prefill of it is.
TEST_F(ServingDeterministicTest, RepliesAreNotReused) {
  Engine engine(*model_, options());
  const Tokens prompt = random_prompt(128, 3);
  engine.submit(test::greedy_request("first", prompt, 130));
  engine.run();
  const Tokens next = joined(joined(prompt, engine.reply("first").tokens), random_prompt(5, 4));
  for (const int64_t hit : {128, 256}) {  // the prompt; then also what the second request prefilled
    const std::string id = cat("hit", hit);
    engine.submit(test::greedy_request(id, next, 1));
    engine.run();
    EXPECT_EQ(engine.reply(id).cached_tokens, hit);
  }
}

}  // namespace
}  // namespace tandem

// The engine with its thread and its callers, field reports 28, 91 and 104 above all: 32 clients on few shared prefixes
// with hardly any memory, and no request is lost. Built with ThreadSanitizer as well.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "engine/serving_support.h"
#include "support/effort.h"

namespace tandem {
namespace {

using test::alone;
using test::Engine;
using test::greedy_request;
using test::joined;
using test::random_prompt;
using test::Tokens;

ServingOptions with_thread() {
  ServingOptions options = test::small_options();
  options.run_thread = true;
  return options;
}

TEST(ServingThreads, ManyClientsOnFewPrefixesWithLittleMemory) {
  const auto model = test::load_model(test::tiny_dir());
  constexpr int64_t kClients = 32;
  const int64_t requests_each = 2 + test::effort(30) / 10;
  // What each of the 4 prefixes and 3 tails gives alone.
  const auto prompt = [](int64_t stem, int64_t tail) {
    return joined(random_prompt(64 + 32 * stem, 10 + stem), random_prompt(5 + tail, 20 + tail));
  };
  std::vector<Tokens> expected;
  for (int64_t k = 0; k < 12; ++k) {
    expected.push_back(test::alone(*model, greedy_request("", prompt(k % 4, k / 4), 6)));
  }
  ServingOptions options = with_thread();
  options.cache_bytes = int64_t{20} * 73728;
  options.verify_rate = 0.2;
  {
    Engine engine(*model, options);
    std::atomic<int64_t> wrong{0}, aborted{0}, done{0};
    std::vector<std::thread> clients;
    for (int64_t c = 0; c < kClients; ++c) {
      clients.emplace_back([&, c] {
        for (int64_t i = 0; i < requests_each; ++i) {
          const int64_t k = (c * 7 + i * 5) % 12;
          const std::string id = cat("c", c, "-", i);
          engine.submit(greedy_request(id, prompt(k % 4, k / 4), 6));
          if ((c + i) % 5 == 0) engine->cancel(id);
          if ((c + i) % 3 == 0) static_cast<void>(engine->lint(prompt(k % 4, 0), {}));
          if ((c + i) % 3 == 1) static_cast<void>(engine->explain(id, ""));
          static_cast<void>(engine->metrics());
          static_cast<void>(engine->health());
          const test::Reply reply = engine.wait(id);
          if (reply.finish == EngineFinish::kAbort) {
            ++aborted;
          } else if (reply.tokens == expected[static_cast<size_t>(k)] && reply.error.is_ok()) {
            ++done;
          } else {
            ++wrong;
          }
        }
      });
    }
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(done + aborted, kClients * requests_each);
    EXPECT_GT(done, aborted);
    engine->drain(60);
    EXPECT_EQ(engine->metrics().verify_failed, 0) << engine->health().problem;
  }
}

TEST(ServingThreads, AThreadOfItsOwnServesDrainsAndBeatsWhileIdle) {
  const auto model = test::load_model(test::tiny_dir());
  Engine engine(*model, with_thread());
  engine.submit(greedy_request("a", random_prompt(100, 1), 20));
  EXPECT_EQ(engine.wait("a").tokens, [&] {
    const auto other = test::load_model(test::tiny_dir());
    return alone(*other, greedy_request("", random_prompt(100, 1), 20));
  }());
  EXPECT_TRUE(engine->health().is_ready);
  EXPECT_FALSE(engine->health().is_draining);
  const auto lint = engine->lint(random_prompt(100, 1), {});
  ASSERT_TRUE(lint.is_ok());
  EXPECT_EQ(lint.value().match.hit_tokens, 64);
  double age = engine->health().heartbeat_age_seconds;  // grows until the idle loop turns
  while (engine->health().heartbeat_age_seconds >= age) {
    age = engine->health().heartbeat_age_seconds;
    std::this_thread::yield();
  }

  engine.submit(greedy_request("b", random_prompt(100, 2), 3));
  engine->drain(60);
  EXPECT_EQ(engine.wait("b").finish, EngineFinish::kLength);
  EXPECT_TRUE(engine->health().is_draining);
  EXPECT_EQ(engine->submit(greedy_request("c", random_prompt(4, 1), 1), [](EngineOutput&&) {}).code(),
            StatusCode::kFailedPrecondition);
}

TEST(ServingThreads, DrainCancelsWhatDoesNotEndInTime) {
  const auto model = test::load_model(test::tiny_dir());
  Engine engine(*model, with_thread());
  engine.submit(greedy_request("long", random_prompt(100, 1), 3000));
  engine->drain(0);
  EXPECT_EQ(engine.wait("long").finish, EngineFinish::kAbort);
}

TEST(ServingThreads, WhatStillRunsAtTheEndIsAborted) {
  test::Clients clients;
  const auto model = test::load_model(test::tiny_dir());
  {
    auto engine = ServingEngine::create(*model, with_thread());
    ASSERT_TRUE(engine.is_ok());
    ASSERT_TRUE(engine.value()->submit(greedy_request("x", random_prompt(64, 1), 3000), clients.sink("x")).is_ok());
  }
  EXPECT_EQ(clients.reply("x").finish, EngineFinish::kAbort);
}

}  // namespace
}  // namespace tandem

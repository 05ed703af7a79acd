// tests/engine/serving_support.h: a serving engine over a small model, clients that collect its outputs, and what the
// same request gives alone.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/cat.h"
#include "engine/generate.h"
#include "engine/serving/serving_engine.h"
#include "sample/philox.h"
#include "support/golden.h"

namespace tandem::test {

using Tokens = std::vector<TokenId>;

// What one candidate was told.
struct Reply {
  Tokens tokens;
  std::vector<TokenOutput> outputs;
  std::vector<TokenOutput> prompt;
  std::optional<EngineFinish> finish;
  Status error;
  int64_t cached_tokens = 0;
  RequestTimes times;
  bool heard_after_finish = false;
};

// Collects the outputs of requests; any thread.
class Clients {
 public:
  OutputSink sink(const std::string& id) {
    return [this, id](EngineOutput&& output) {
      const std::lock_guard lock(mu_);
      Reply& reply = replies_[{id, output.candidate}];
      reply.heard_after_finish |= reply.finish.has_value();
      for (TokenOutput& token : output.tokens) {
        reply.tokens.push_back(token.token);
        reply.outputs.push_back(std::move(token));
      }
      if (!output.prompt.empty()) reply.prompt = std::move(output.prompt);
      if (output.finish) reply.finish = output.finish;
      reply.error = std::move(output.error);
      reply.cached_tokens = output.cached_tokens;
      reply.times = output.times;
      changed_.notify_all();
    };
  }
  Reply reply(const std::string& id, int64_t candidate = 0) {
    const std::lock_guard lock(mu_);
    return replies_[{id, candidate}];
  }
  Reply wait(const std::string& id, int64_t candidate = 0) {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [&] { return replies_[{id, candidate}].finish.has_value(); });
    return replies_[{id, candidate}];
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::map<std::pair<std::string, int64_t>, Reply> replies_;
};

inline std::unique_ptr<LoadedModel> load_model(const std::string& dir, std::optional<int64_t> context = std::nullopt) {
  LoadOptions options;
  options.context = context;
  options.num_threads = 2;  // rows and draws run on the pool
  auto model = LoadedModel::load(dir, options);
  TANDEM_CHECK(model.is_ok(), model.status().message());
  return std::move(model).value();
}

inline std::string tiny_dir() { return data_path("golden/k3-tiny"); }

// Tokens that the seed determines.
inline Tokens random_prompt(int64_t count, uint64_t seed, int32_t vocab = 360) {
  Tokens tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.emplace_back(static_cast<int32_t>(philox_uniform(seed, static_cast<uint64_t>(i)) * vocab));
  }
  return tokens;
}

inline Tokens joined(Tokens first, const Tokens& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

inline EngineRequest greedy_request(std::string id, Tokens prompt, int64_t max_tokens) {
  EngineRequest request;
  request.id = std::move(id);
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.max_tokens = max_tokens;
  return request;
}

inline EngineRequest seeded_request(std::string id, Tokens prompt, int64_t max_tokens, uint64_t seed) {
  EngineRequest request = greedy_request(std::move(id), std::move(prompt), max_tokens);
  request.sampling.temperature = 1;
  request.sampling.seed = seed;
  return request;
}

// The tokens of the request by itself, from an empty cache of its own.
inline Tokens alone(LoadedModel& model, const EngineRequest& request) {
  Generator generator(model);
  GenerateRequest single;
  single.prompt = request.prompt;
  single.sampling = request.sampling;
  single.max_tokens = request.max_tokens;
  single.stop_tokens = request.stop_tokens;
  const auto result = generator.run(single, [](TokenId) { return true; });
  TANDEM_CHECK(result.is_ok(), result.status().message());
  return result.value().tokens;
}

// Small units and steps, so that a few hundred tokens meet every boundary; driven by step(), and by no clock.
inline ServingOptions small_options() {
  ServingOptions options;
  options.cache_bytes = int64_t{8} << 20;
  options.hash_unit = 64;
  options.scheduler.token_budget = 96;
  options.scheduler.max_running = 16;
  options.scheduler.step_seconds = 0;
  options.poison = true;
  options.verify_quiet_seconds = 0;
  options.run_thread = false;
  return options;
}

class Engine {
 public:
  explicit Engine(LoadedModel& model, ServingOptions options = small_options()) {
    auto made = ServingEngine::create(model, std::move(options));
    TANDEM_CHECK(made.is_ok(), made.status().message());
    engine_ = std::move(made).value();
  }
  ServingEngine* operator->() { return engine_.get(); }

  void submit(EngineRequest request) {
    const std::string id = request.id;
    const Status status = engine_->submit(std::move(request), clients_.sink(id));
    ASSERT_TRUE(status.is_ok()) << status.message();
  }
  // Until nothing is left to do, verification included.
  void run() {
    while (engine_->step() || !is_idle()) {
      ASSERT_LT(++steps_, 100000) << "the engine does not come to an end";
    }
  }
  bool is_idle() {
    const EngineMetrics metrics = engine_->metrics();
    return metrics.running + metrics.waiting + metrics.swapped == 0;
  }
  Reply reply(const std::string& id, int64_t candidate = 0) { return clients_.reply(id, candidate); }
  Reply wait(const std::string& id, int64_t candidate = 0) { return clients_.wait(id, candidate); }

  // Every block is free or cached, and the cache is what it says.
  void expect_no_leak() {
    const HybridCacheStats stats = engine_->cache().stats();
    EXPECT_EQ(stats.free_blocks + stats.evictable_blocks, stats.num_blocks);
    expect_sound();
  }
  void expect_sound() {
    const Status audit = engine_->cache().audit(true);
    EXPECT_TRUE(audit.is_ok()) << audit.message();
  }

 private:
  Clients clients_;  // outlives the engine, whose sinks write to it
  std::unique_ptr<ServingEngine> engine_;
  int64_t steps_ = 0;
};

}  // namespace tandem::test

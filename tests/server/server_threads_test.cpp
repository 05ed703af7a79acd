// The API with threads of an engine and of workers, as a server has them.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "server/api_harness.h"

namespace tandem::test {
namespace {

// An exchange whose tasks run on a thread of its own, as a server's worker would.
class ThreadedExchange : public FakeExchange {
 public:
  using FakeExchange::FakeExchange;
  void post(std::function<void()> task) override {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  bool run_one() {
    std::function<void()> task;
    {
      const std::lock_guard lock(mutex_);
      if (tasks_.empty()) return false;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
    return true;
  }

 private:
  std::mutex mutex_;
  std::deque<std::function<void()>> tasks_;
};

// The engine's thread delivers while workers read and one client leaves; a lock stands for the engine's own.
class LockedEngine : public FakeEngine {
 public:
  Status submit(EngineRequest request, OutputSink sink) override {
    const std::lock_guard lock(mutex);
    return FakeEngine::submit(std::move(request), std::move(sink));
  }
  void cancel(const std::string& id, std::optional<int64_t> candidate) override {
    const std::lock_guard lock(mutex);
    FakeEngine::cancel(id, candidate);
  }
  std::mutex mutex;
};

TEST(ApiThreads, TheEngineDeliversWhileWorkersRead) {
  const Tokenizer tokenizer = named_tokenizer(single_bytes());
  LockedEngine engine;
  engine.model_facts.vocab_size = tokenizer.vocab_size();
  const auto ids = tokenizer.encode_control("thinking about it" + kAnswer + std::string(200, 'x') + "STOP" +
                                            std::string(50, 'y') + kDone);
  engine.script = [&](const EngineRequest&, int64_t) { return FakeEngine::Reply{ids, EngineFinish::kLength, {}}; };
  const auto server = ApiServer::create(engine, tokenizer, toy_options(tokenizer));
  ASSERT_TRUE(server.is_ok());
  constexpr int kClients = 8;
  std::vector<std::shared_ptr<ThreadedExchange>> exchanges;
  for (int i = 0; i < kClients; ++i) {
    const ordered_json body = with(kHello, {{"stream", i % 2 == 0}, {"stop", "STOP"}});
    exchanges.push_back(
        std::make_shared<ThreadedExchange>(HttpRequest{"POST", "/v1/chat/completions", "", {}, body.dump()}));
  }
  std::atomic<bool> is_done = false;
  std::thread engine_thread([&] {
    while (!is_done) {
      {
        const std::lock_guard lock(engine.mutex);
        engine.step();
      }
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> workers;
  for (int i = 0; i < kClients; ++i) {
    workers.emplace_back([&, i] {
      server.value().handle(exchanges[static_cast<size_t>(i)]);
      int num_tasks = 0;
      while (!exchanges[static_cast<size_t>(i)]->has_ended()) {
        if (exchanges[static_cast<size_t>(i)]->run_one()) {
          ++num_tasks;
        } else {
          std::this_thread::yield();
        }
        if (i != 7 || num_tasks < 5) continue;
        exchanges[static_cast<size_t>(i)]->disconnect();
        return;
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  is_done = true;
  engine_thread.join();
  while (engine.step()) {
  }
  for (const auto& exchange : exchanges) {  // a task that is left holds its exchange
    while (exchange->run_one()) {
    }
  }
  for (int i = 0; i < kClients - 1; ++i) {
    const auto& exchange = exchanges[static_cast<size_t>(i)];
    if (i % 2 == 0) {
      EXPECT_EQ(ChatStreamChecker({}).check(exchange->bytes()).messages.at(0).content, std::string(200, 'x'));
    } else {
      EXPECT_EQ(seen_message(ordered_json::parse(exchange->response().body)["choices"][0]).content,
                std::string(200, 'x'));
    }
  }
}

}  // namespace
}  // namespace tandem::test

// The API behind the real HTTP server: bytes of a stream on a socket, and a client that hangs up.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "server/api_harness.h"
#include "server/http_test_client.h"

namespace tandem::test {
namespace {

// The scripted engine on a thread of its own, which steps while anything lives.
class RunningEngine : public FakeEngine {
 public:
  RunningEngine() : thread_([this] { run(); }) {}
  ~RunningEngine() override {
    stops_ = true;
    thread_.join();
  }
  Status submit(EngineRequest request, OutputSink sink) override {
    const std::lock_guard lock(mutex_);
    return FakeEngine::submit(std::move(request), std::move(sink));
  }
  void cancel(const std::string& id, std::optional<int64_t> candidate) override {
    const std::lock_guard lock(mutex_);
    FakeEngine::cancel(id, candidate);
  }
  bool is_idle() {
    const std::lock_guard lock(mutex_);
    return num_live() == 0;
  }
  size_t num_submitted() {
    const std::lock_guard lock(mutex_);
    return submitted.size();
  }

 private:
  void run() {
    while (!stops_) {
      {
        const std::lock_guard lock(mutex_);
        step();
      }
      sleep_a_little();
    }
  }
  std::mutex mutex_;
  std::atomic<bool> stops_ = false;
  std::thread thread_;
};

class ApiOverHttp : public ::testing::Test {
 protected:
  void start(const std::string& script) {
    const auto ids = tokenizer.encode_control(script);
    engine.model_facts.vocab_size = tokenizer.vocab_size();
    engine.script = [ids](const EngineRequest&, int64_t) { return FakeEngine::Reply{ids, EngineFinish::kLength, {}}; };
    auto api = ApiServer::create(engine, tokenizer, toy_options(tokenizer));
    ASSERT_TRUE(api.is_ok());
    server = start_server(test_options(), api.value().handler());
  }
  static std::string chat(const ordered_json& more) {
    return post_request("/v1/chat/completions", with(kHello, more).dump(), "Content-Type: application/json\r\n");
  }

  const Tokenizer tokenizer = named_tokenizer(single_bytes());
  RunningEngine engine;
  std::unique_ptr<HttpServer> server;
};

TEST_F(ApiOverHttp, StreamsWholeAnswersAndErrorsOnOneConnection) {
  start("deep" + kAnswer + "日本 answer" + kDone);
  RawClient client(server->port());
  ASSERT_TRUE(client.send(chat({{"stream", true}})));
  const ParsedResponse stream = client.read_response();
  EXPECT_EQ(stream.status, 200);
  EXPECT_EQ(stream.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(stream.headers.at("transfer-encoding"), "chunked");
  EXPECT_FALSE(stream.headers.at("x-msh-usage-prompt-tokens").empty());
  const SeenStream seen = ChatStreamChecker({}).check(stream.body);
  EXPECT_EQ(seen.messages.at(0).content, "日本 answer");
  ASSERT_TRUE(client.send(chat({})));
  const ParsedResponse whole = client.read_response();
  EXPECT_EQ(whole.headers.at("content-type"), "application/json");
  expect_same_message(seen_message(ordered_json::parse(whole.body)["choices"][0]), seen.messages.at(0));
  ASSERT_TRUE(client.send(chat({{"n", 0}})));
  EXPECT_EQ(client.read_response().status, 400);
  ASSERT_TRUE(client.send(get_request("/v1/models")));
  EXPECT_EQ(client.read_response().status, 200);
}

TEST_F(ApiOverHttp, AClientThatHangsUpFreesItsRequest) {
  start(std::string(4000, 'x'));
  for (const bool streams : {true, false}) {
    const size_t before = engine.num_submitted();
    RawClient client(server->port());
    ASSERT_TRUE(client.send(chat({{"stream", streams}})));
    ASSERT_TRUE(eventually([&] { return engine.num_submitted() > before; }));
    if (streams) client.read_until("reasoning_content");
    client.close();
    EXPECT_TRUE(eventually([&] { return engine.is_idle(); }));
  }
}

}  // namespace
}  // namespace tandem::test

// tests/server/api_harness.h: an ApiServer over a scripted engine, and requests to it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/api_server.h"
#include "server/fake_engine.h"
#include "server/fake_exchange.h"
#include "server/sse_checker.h"
#include "text/xtml_reply_script.h"

namespace tandem::test {

inline const ordered_json kHello = {{"messages", {{{"role", "user"}, {"content", "hello"}}}}};

inline ordered_json with(ordered_json body, const ordered_json& more) {
  if (!more.is_null()) body.update(more);
  return body;
}

inline ApiOptions toy_options(const Tokenizer& tokenizer) {
  ApiOptions options;
  options.served_names = {"toy", "toy-alias"};
  options.default_sampling.top_p = 0.95;
  options.version = "1.2.3";
  for (const char* name : {"<|end_of_msg|>", "[EOS]", "<|im_end|>"}) {
    if (const auto id = tokenizer.control_id(name)) options.stop_tokens.push_back(*id);
  }
  return options;
}

class Api {
 public:
  explicit Api(Tokenizer toy, std::optional<ApiOptions> options = std::nullopt, RequestObserver* observer = nullptr,
               ApiKeys keys = {})
      : tokenizer(std::move(toy)) {
    engine.model_facts.vocab_size = tokenizer.vocab_size();
    auto created = ApiServer::create(
        engine, tokenizer, options ? *options : toy_options(tokenizer), observer,
        [] { return std::string("# metrics\n"); }, std::move(keys));
    EXPECT_TRUE(created.is_ok()) << created.status().message();
    server.emplace(std::move(created).value());
  }
  // Single bytes as tokens.
  explicit Api(std::optional<ApiOptions> options = std::nullopt, RequestObserver* observer = nullptr, ApiKeys keys = {})
      : Api(named_tokenizer(single_bytes()), std::move(options), observer, std::move(keys)) {}

  // Every candidate of every request says this; control names in it are control ids.
  void says(const std::string& text, EngineFinish end = EngineFinish::kLength) {
    const std::vector<TokenId> ids = tokenizer.encode_control(text);
    engine.script = [ids, end](const EngineRequest&, int64_t) { return FakeEngine::Reply{ids, end, Status()}; };
  }

  std::shared_ptr<FakeExchange> begin(const std::string& method, const std::string& path, const std::string& body,
                                      HttpHeaders headers = {}) {
    auto exchange = std::make_shared<FakeExchange>(HttpRequest{method, path, "", std::move(headers), body});
    server->handle(exchange);
    exchange->run_tasks();
    return exchange;
  }
  std::shared_ptr<FakeExchange> finish(std::shared_ptr<FakeExchange> exchange) {
    while (!exchange->has_ended()) {
      const bool lives = engine.step();
      exchange->run_tasks();
      if (!lives && !exchange->has_ended()) {
        ADD_FAILURE() << "the engine is done and the exchange is not";
        break;
      }
    }
    while (engine.step()) exchange->run_tasks();
    exchange->run_tasks();
    return exchange;
  }
  std::shared_ptr<FakeExchange> send(const std::string& path, const ordered_json& body, HttpHeaders headers = {}) {
    return finish(begin("POST", path, body.dump(), std::move(headers)));
  }
  std::shared_ptr<FakeExchange> get(const std::string& path) { return begin("GET", path, ""); }

  ordered_json chat(const ordered_json& body) {
    const auto exchange = send("/v1/chat/completions", body);
    EXPECT_EQ(exchange->response().status, 200) << exchange->response().body;
    return ordered_json::parse(exchange->response().body);
  }
  SeenStream stream(ordered_json body, StreamRules rules = {}) {
    body["stream"] = true;
    const auto exchange = send("/v1/chat/completions", body);
    EXPECT_EQ(exchange->response().status, 200) << exchange->response().body;
    EXPECT_EQ(exchange->response().content_type, "text/event-stream; charset=utf-8");
    return ChatStreamChecker(rules).check(exchange->bytes());
  }
  // The `error` of a refusal.
  ordered_json refused(const std::string& path, const std::string& body, int status = 400) {
    const auto exchange = begin("POST", path, body);
    if (!exchange->is_answered()) {
      ADD_FAILURE() << "accepted: " << body;
      finish(exchange);
      return {};
    }
    EXPECT_EQ(exchange->response().status, status) << body << "\n" << exchange->response().body;
    EXPECT_FALSE(exchange->is_stream());
    return ordered_json::parse(exchange->response().body)["error"];
  }
  ordered_json refused_chat(const ordered_json& body, int status = 400) {
    return refused("/v1/chat/completions", body.dump(), status);
  }

  Tokenizer tokenizer;
  FakeEngine engine;
  std::optional<ApiServer> server;
};

inline SeenMessage seen_message(const ordered_json& choice) {
  SeenMessage seen;
  const ordered_json& message = choice["message"];
  EXPECT_EQ(message["role"], "assistant");
  seen.reasoning = message.value("reasoning_content", std::string());
  if (!message["content"].is_null()) seen.content = message["content"];
  if (message.contains("tool_calls")) {
    EXPECT_FALSE(message["tool_calls"].empty());
    for (const auto& call : message["tool_calls"]) {
      EXPECT_EQ(call["type"], "function");
      seen.calls.push_back({call["id"], call["function"]["name"], call["function"]["arguments"]});
    }
  }
  seen.finish = choice["finish_reason"];
  if (!choice["logprobs"].is_null()) seen.logprobs = choice["logprobs"]["content"];
  return seen;
}

// A stream tells what a whole answer tells; ids of calls are drawn anew each time.
inline void expect_same_message(const SeenMessage& a, const SeenMessage& b) {
  EXPECT_EQ(a.reasoning, b.reasoning);
  EXPECT_EQ(a.content, b.content);
  EXPECT_EQ(a.finish, b.finish);
  EXPECT_EQ(a.logprobs, b.logprobs);
  ASSERT_EQ(a.calls.size(), b.calls.size());
  for (size_t i = 0; i < a.calls.size(); ++i) {
    EXPECT_EQ(a.calls[i].name, b.calls[i].name);
    EXPECT_EQ(a.calls[i].arguments, b.calls[i].arguments);
  }
}

// The same request whole and streamed, one and several tokens an output: one message.
inline SeenMessage both(Api& api, const ordered_json& body, StreamRules rules = {}) {
  const ordered_json whole = api.chat(body);
  const SeenMessage message = seen_message(whole["choices"][0]);
  for (const size_t tokens : {1u, 2u, 7u}) {
    api.engine.tokens_per_output = tokens;
    const SeenStream streamed = api.stream(body, rules);
    expect_same_message(streamed.messages.at(0), message);
    EXPECT_EQ(streamed.messages.at(0).usage, whole["usage"]);
  }
  api.engine.tokens_per_output = 1;
  return message;
}

inline const ordered_json kOneTool = {
    {"tools", {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", {{"type", "object"}}}}}}}}};

// What closes thinking and opens the answer, and what ends it.
inline const std::string kAnswer = close("think") + open("response");
inline const std::string kDone = close("response") + close("message") + kEnd;

}  // namespace tandem::test

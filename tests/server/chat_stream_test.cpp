// What a chat stream sends, and that it sends what a whole answer says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api_harness.h"
#include "server/call_ids.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;

TEST(ChatStream, UsageFrames) {
  Api api;
  api.engine.cached_tokens = 12;
  api.says("think" + kAnswer + "answer" + kDone);
  StreamRules rules;
  rules.include_usage = true;
  ordered_json body = with(kHello, {{"stream_options", {{"include_usage", true}}}});
  const SeenStream seen = api.stream(body, rules);
  const std::vector<TokenId> prompt = api.engine.submitted.back().prompt;
  // Bytes as tokens: the opener is <|open|>think<|sep|>, 7 ids; in a vocabulary with the word it is 3.
  EXPECT_EQ(seen.usage["prompt_tokens"], prompt.size() - 7);
  EXPECT_EQ(seen.usage["prompt_tokens_details"]["cached_tokens"], 12);
  EXPECT_EQ(seen.usage["completion_tokens_details"]["reasoning_tokens"], 5);
  const size_t script = api.tokenizer.encode_control("think" + kAnswer + "answer" + kDone).size();
  EXPECT_EQ(seen.usage["completion_tokens"], script) << "control tokens and the stop token count";
  EXPECT_EQ(seen.messages.at(0).usage, seen.usage);

  rules.continuous_usage = true;
  body["stream_options"]["continuous_usage_stats"] = true;
  int64_t last = 0;
  const SeenStream stats = api.stream(body, rules);
  for (const auto& frame : stats.frames) {
    const int64_t tokens = frame["usage"]["completion_tokens"];
    EXPECT_GE(tokens, last);
    last = tokens;
  }
  EXPECT_EQ(last, static_cast<int64_t>(script));
  body["stream"] = true;
  const auto exchange = api.send("/v1/chat/completions", body);
  EXPECT_EQ(exchange->header("X-Msh-Usage-Prompt-Tokens"), cat(prompt.size() - 7));
  EXPECT_EQ(exchange->header("X-Msh-Usage-Cached-Tokens"), "12");
  EXPECT_EQ(exchange->header("Cache-Control"), "no-cache");
  EXPECT_EQ(exchange->header("X-Accel-Buffering"), "no");
  const auto whole = api.send("/v1/chat/completions", kHello);
  EXPECT_EQ(whole->header("X-Msh-Usage-Prompt-Tokens"), cat(prompt.size() - 7));
  EXPECT_EQ(whole->header("X-Msh-Usage-Cached-Tokens"), "12");
}

TEST(ChatStream, PromptTokensLeaveTheOpenChannelOut) {
  std::vector<std::string> tokens = single_bytes();
  // Merges that lead to the words `think` and `response`.
  for (const char* token : {"th", "in", "thin", "think", "re", "sp", "on", "se", "resp", "onse", "response"})
    tokens.emplace_back(token);
  Api api(named_tokenizer(tokens));
  const auto counted = [&](const ordered_json& body) {
    const int64_t usage = api.chat(body)["usage"]["prompt_tokens"];
    return static_cast<int64_t>(api.engine.submitted.back().prompt.size()) - usage;
  };
  EXPECT_EQ(counted(kHello), 3);
  EXPECT_EQ(counted(with(kHello, {{"thinking", false}})), 3);
  EXPECT_EQ(counted(with(kHello, {{"add_generation_prompt", false}})), 0);
  ordered_json partial = kHello;
  partial["messages"].push_back({{"role", "assistant"}, {"content", "Sure"}, {"partial", true}});
  EXPECT_EQ(counted(partial), 0);
  partial["messages"][1]["content"] = "";
  EXPECT_EQ(counted(partial), 3);
}

TEST(ChatStream, CandidatesInterleaveEachWithItsOwnReply) {
  Api api;
  api.engine.script = [&](const EngineRequest&, int64_t i) {
    const std::string text = cat("t", i, kAnswer, "answer ", i) + (i == 1 ? "" : kDone);
    return FakeEngine::Reply{api.tokenizer.encode_control(text), EngineFinish::kLength, {}};
  };
  StreamRules rules;
  rules.num_choices = 3;
  rules.include_usage = true;
  const ordered_json body = with(kHello, {{"n", 3}, {"stream_options", {{"include_usage", true}}}});
  const SeenStream seen = api.stream(body, rules);
  const ordered_json whole = api.chat(body);
  ASSERT_EQ(whole["choices"].size(), 3u);
  int64_t completion_tokens = 0;
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(seen.messages.at(i).content, cat("answer ", i));
    EXPECT_EQ(seen.messages.at(i).reasoning, cat("t", i));
    EXPECT_EQ(seen.messages.at(i).finish, i == 1 ? "length" : "stop");
    expect_same_message(seen_message(whole["choices"][static_cast<size_t>(i)]), seen.messages.at(i));
    completion_tokens += seen.messages.at(i).usage["completion_tokens"].get<int64_t>();
  }
  EXPECT_EQ(seen.usage["completion_tokens"], completion_tokens);
  EXPECT_EQ(seen.usage, whole["usage"]);
}

TEST(ChatStream, AStopEndsOnlyItsCandidate) {
  Api api;
  api.engine.script = [&](const EngineRequest&, int64_t i) {
    const std::string text = "t" + kAnswer + (i == 0 ? "a STOP b" : "a much longer answer") + kDone;
    return FakeEngine::Reply{api.tokenizer.encode_control(text), EngineFinish::kLength, {}};
  };
  const ordered_json whole = api.chat(with(kHello, {{"n", 2}, {"stop", "STOP"}}));
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "a ");
  EXPECT_EQ(whole["choices"][1]["message"]["content"], "a much longer answer");
  ASSERT_EQ(api.engine.cancelled.size(), 1u);
  EXPECT_EQ(api.engine.cancelled[0].candidate, 0);
}

TEST(ChatStream, TokenIds) {
  Api api;
  const std::string script = "think" + kAnswer + "日本" + kDone;
  api.says(script);
  std::vector<int32_t> ids;
  for (const TokenId id : api.tokenizer.encode_control(script)) ids.push_back(id.value);
  const ordered_json body = with(kHello, {{"return_token_ids", true}});
  const ordered_json whole = api.chat(body);
  EXPECT_EQ(whole["choices"][0]["token_ids"].get<std::vector<int32_t>>(), ids);
  EXPECT_EQ(whole["prompt_token_ids"].size(), api.engine.submitted.back().prompt.size());
  const SeenStream seen = api.stream(body);
  EXPECT_EQ(seen.messages.at(0).token_ids, ids);
  EXPECT_EQ(seen.frames[0]["prompt_token_ids"], whole["prompt_token_ids"]);
  // The vendor's form: with the increments themselves.
  ordered_json internal = kHello;
  internal["stream"] = true;
  internal["stream_options"] = {{"include_internal_content", true}};
  const auto exchange = api.send("/v1/chat/completions", internal);
  std::vector<int32_t> seen_ids;
  for (const std::string& event : sse_events(exchange->bytes())) {
    if (event == "[DONE]") continue;
    const ordered_json delta = ordered_json::parse(event)["choices"][0]["delta"];
    if (!delta.contains("internal_content")) continue;
    for (const auto& id : delta["internal_content"]["token_ids"]) seen_ids.push_back(id.get<int32_t>());
  }
  EXPECT_TRUE(std::equal(seen_ids.begin(), seen_ids.end(), ids.begin()));
  EXPECT_GT(seen_ids.size(), 10u);
}

TEST(ChatStream, ReasoningAsAsked) {
  Api api;
  api.says("deep" + kAnswer + "answer" + kDone);
  EXPECT_EQ(both(api, with(kHello, {{"include_reasoning", false}})).reasoning, "");
  EXPECT_EQ(both(api, with(kHello, {{"include_reasoning", false}})).content, "answer");
  EXPECT_EQ(both(api, with(kHello, {{"separate_reasoning", false}})).content, "deepanswer");
  EXPECT_EQ(both(api, with(kHello, {{"separate_reasoning", false}})).reasoning, "");
  ApiOptions options = toy_options(api.tokenizer);
  options.copy_reasoning = true;
  Api copies(options);
  copies.says("deep" + kAnswer + "answer" + kDone);
  const ordered_json message = copies.chat(kHello)["choices"][0]["message"];
  EXPECT_EQ(message["reasoning"], "deep");
  EXPECT_EQ(message["reasoning_content"], "deep");
  const SeenStream seen = copies.stream(kHello);
  EXPECT_EQ(seen.frames[1]["choices"][0]["delta"], (ordered_json{{"reasoning_content", "d"}, {"reasoning", "d"}}));
}

TEST(ChatStream, OneCallWhenCallsAreNotParallel) {
  Api api;
  const std::string one = open("call tool=\"f\"") + argument("a", "number", "1") + close("call");
  api.says("t" + kAnswer + close("response") + open("tools") + one + one + close("tools") + close("message") + kEnd);
  const ordered_json body = with(kHello, kOneTool);
  EXPECT_EQ(both(api, body).calls.size(), 2u);
  const SeenMessage message = both(api, with(body, {{"parallel_tool_calls", false}}));
  EXPECT_EQ(message.calls.size(), 1u);
  EXPECT_EQ(message.finish, "tool_calls");
  EXPECT_FALSE(api.engine.cancelled.empty());
}

TEST(ChatStream, CallIdsAreNewAndWellFormed) {
  Api api;
  api.engine.model_facts.context_limit = 1 << 20;
  const std::string call = open("call tool=\"get.time-1\"") + close("call");
  api.says("t" + kAnswer + close("response") + open("tools") + call + call + close("tools") + kEnd);
  ordered_json body = with(kHello, kOneTool);
  body["tools"][0]["function"]["name"] = "get.time-1";
  std::set<std::string> ids;
  for (int round = 0; round < 50; ++round) {
    const SeenMessage message = seen_message(api.chat(body)["choices"][0]);
    ASSERT_EQ(message.calls.size(), 2u);
    for (const SeenCall& seen : message.calls) {
      EXPECT_EQ(seen.name, "get.time-1");
      EXPECT_THAT(seen.id, testing::MatchesRegex("get_time_1_[0-9]{12,15}"));
      EXPECT_TRUE(ids.insert(seen.id).second) << seen.id;
      body["messages"].push_back(
          {{"role", "assistant"},
           {"tool_calls",
            {{{"id", seen.id}, {"type", "function"}, {"function", {{"name", "get.time-1"}, {"arguments", "{}"}}}}}}});
      body["messages"].push_back({{"role", "tool"}, {"tool_call_id", seen.id}, {"content", "x"}});
    }
    if (round == 3) body["messages"] = kHello["messages"];
  }
  // Any name gives an id of the vendor's form, of 64 bytes at most.
  CallIds maker(ChatFormat::kXtml, {});
  for (const std::string& name :
       std::vector<std::string>{"1st", "城市", "", "a b", std::string(300, 'x'), "9" + std::string(60, 'x')}) {
    const std::string id = maker.next(name, 0);
    EXPECT_THAT(id, testing::MatchesRegex("[A-Za-z_][A-Za-z0-9_]*_[0-9]+"));
    EXPECT_LE(id.size(), 64u) << id;
  }
}

// A call's first chunk comes when its tag closes, its arguments as they are written.
TEST(ChatStream, ArgumentsAreStreamedWhenAsked) {
  Api api;
  const std::string value(2000, 'v');
  api.says("t" + kAnswer + in_call(open("argument key=\"k\" type=\"string\"") + value));
  ordered_json body = with(kHello, kOneTool);
  EXPECT_TRUE(both(api, body).calls.empty()) << "cut off: not reported";
  body["stream_tool_arguments"] = true;
  const SeenStream seen = api.stream(body);
  const SeenMessage& message = seen.messages.at(0);
  ASSERT_EQ(message.calls.size(), 1u);
  EXPECT_EQ(message.calls[0].arguments, R"({"k": ")" + value);
  EXPECT_EQ(message.finish, "length");
  EXPECT_GE(seen.frames.size(), value.size()) << "a frame a token";
}

TEST(ChatErrors, BeforeTheFirstTokenAnErrorIsAStatus) {
  Api api;
  api.engine.script = [](const EngineRequest&, int64_t) {
    return FakeEngine::Reply{{}, EngineFinish::kError, Status::non_finite("logits of position 7: found a NaN")};
  };
  for (const bool streams : {false, true}) {
    const auto exchange = api.send("/v1/chat/completions", with(kHello, {{"stream", streams}}));
    EXPECT_EQ(exchange->response().status, 500);
    EXPECT_FALSE(exchange->is_stream());
    const ordered_json error = ordered_json::parse(exchange->response().body)["error"];
    EXPECT_EQ(error["type"], "server_error");
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("NaN"));
  }
}

TEST(ChatErrors, BehindTheFirstTokenAnErrorIsTheLastFrame) {
  Api api;
  const auto tokens = api.tokenizer.encode_control("thinking");
  api.engine.script = [&](const EngineRequest&, int64_t) {
    return FakeEngine::Reply{tokens, EngineFinish::kError, Status::non_finite("logits: found a NaN")};
  };
  for (const size_t size : {size_t{1}, size_t{3}}) {
    api.engine.tokens_per_output = size;
    const auto exchange = api.send("/v1/chat/completions", with(kHello, {{"stream", true}}));
    const SeenStream seen = ChatStreamChecker({}).check(exchange->bytes());
    EXPECT_EQ(seen.error["type"], "server_error");
    EXPECT_FALSE(seen.is_done);
    EXPECT_TRUE(seen.messages.at(0).finish.empty()) << "no end frame";
    EXPECT_FALSE(exchange->is_complete());
    EXPECT_EQ(api.send("/v1/chat/completions", kHello)->response().status, 500);
  }
}

TEST(ChatErrors, WhatTheEngineRefuses) {
  Api api;
  const auto refused = [&](Status status) {
    api.engine.refusal = std::move(status);
    return api.send("/v1/chat/completions", with(kHello, {{"stream", true}}));
  };
  const auto full = refused(Status::exhausted("the queue is full"));
  EXPECT_EQ(full->response().status, 429);
  EXPECT_EQ(full->header("Retry-After"), "1");
  EXPECT_THAT(full->response().body, HasSubstr(R"("code":"engine_overloaded")"));
  EXPECT_EQ(refused(Status::failed_precondition("draining"))->response().status, 503);
  EXPECT_EQ(refused(Status::invalid("temperature: expected …"))->response().status, 400);
  EXPECT_EQ(refused(Status::io("disk"))->response().status, 500);
}

TEST(ChatErrors, ARequestTheServerCancelsIsUnavailable) {
  Api api;
  api.says("some text");
  const auto exchange = api.begin("POST", "/v1/chat/completions", kHello.dump());
  api.engine.cancel(api.engine.submitted[0].id, std::nullopt);
  api.finish(exchange);
  EXPECT_EQ(exchange->response().status, 503);
}

class Recorder : public RequestObserver {
 public:
  void on_tokens(double seconds, int64_t tokens) override {
    EXPECT_GE(seconds, 0.0);
    later_tokens += tokens;
  }
  void on_finished(const RequestRecord& record) override { records.push_back(record); }
  int64_t later_tokens = 0;
  std::vector<RequestRecord> records;
};

// A client that goes away frees its request wherever it is: queued, in prefill (no output yet), in decode.
TEST(ChatCancel, AClientThatGoesAwayFreesItsRequest) {
  for (const bool streams : {false, true}) {
    for (const int steps : {-1, 0, 1, 5}) {
      Recorder recorder;
      Api api(std::nullopt, &recorder);
      api.says(std::string(100, 'x'));
      const auto exchange = std::make_shared<FakeExchange>(
          HttpRequest{"POST", "/v1/chat/completions", "", {}, with(kHello, {{"stream", streams}, {"n", 2}}).dump()});
      api.server->handle(exchange);
      if (steps < 0) exchange->disconnect();  // even before it was submitted
      exchange->run_tasks();
      for (int i = 0; i < steps; ++i) {
        api.engine.step();
        exchange->run_tasks();
      }
      exchange->disconnect();
      for (int i = 0; i < 2; ++i) {
        api.engine.step();
        exchange->run_tasks();
      }
      EXPECT_EQ(api.engine.num_live(), 0u) << "steps " << steps;
      ASSERT_EQ(recorder.records.size(), 1u);
      EXPECT_EQ(recorder.records[0].ends, (std::vector<RequestEnd>(2, RequestEnd::kAbort)));
      EXPECT_EQ(exchange.use_count(), 1) << "nothing holds the connection";
    }
  }
}

TEST(ChatCancel, AReaderTooSlowIsGivenUp) {
  Api api;
  api.says(std::string(100, 'x'));
  const auto exchange = api.begin("POST", "/v1/chat/completions", with(kHello, {{"stream", true}}).dump());
  exchange->max_bytes = 1000;
  while (api.engine.step()) exchange->run_tasks();
  exchange->run_tasks();
  EXPECT_TRUE(exchange->has_ended());
  EXPECT_FALSE(exchange->is_complete());
  EXPECT_FALSE(api.engine.cancelled.empty());
  EXPECT_LT(exchange->bytes().size(), 2000u);
}

TEST(ChatObserver, CountsTokensAndEnds) {
  Recorder recorder;
  Api api(std::nullopt, &recorder);
  api.engine.cached_tokens = 5;
  api.says("t" + kAnswer + "a STOP b" + kDone);
  api.chat(with(kHello, {{"max_tokens", 50}}));
  api.chat(with(kHello, {{"stop", "STOP"}}));
  api.chat(with(kHello, {{"max_tokens", 2}, {"n", 2}}));
  ASSERT_EQ(recorder.records.size(), 3u);
  EXPECT_EQ(recorder.records[0].ends, std::vector<RequestEnd>{RequestEnd::kStop});
  EXPECT_EQ(recorder.records[0].cached_tokens, 5);
  EXPECT_EQ(recorder.records[0].max_tokens, 50);
  EXPECT_EQ(recorder.records[0].prompt_tokens, static_cast<int64_t>(api.engine.submitted[0].prompt.size()));
  EXPECT_EQ(recorder.records[1].ends, std::vector<RequestEnd>{RequestEnd::kStop}) << "cancelled because it was over";
  EXPECT_EQ(recorder.records[2].ends, (std::vector<RequestEnd>(2, RequestEnd::kLength)));
  EXPECT_EQ(recorder.records[2].generated_tokens, 4);
  EXPECT_GT(recorder.later_tokens, 0);
}

}  // namespace
}  // namespace tandem::test

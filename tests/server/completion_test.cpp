// /v1/completions: prompts in all forms, echo, the old logprobs object, stops, streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api_harness.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;

class Completions : public ::testing::Test {
 protected:
  ordered_json complete(const ordered_json& body) {
    const auto exchange = api.send("/v1/completions", body);
    EXPECT_EQ(exchange->response().status, 200) << exchange->response().body;
    return ordered_json::parse(exchange->response().body);
  }
  // The text of each choice, joined from the frames, whose form is checked.
  struct Streamed {
    std::map<int64_t, std::string> texts;
    std::map<int64_t, ordered_json> ends;
    ordered_json usage;
    ordered_json logprobs;  // the lists of choice 0, joined
  };
  Streamed stream(ordered_json body, bool with_usage = false) {
    body["stream"] = true;
    if (with_usage) body["stream_options"] = {{"include_usage", true}};
    const auto exchange = api.send("/v1/completions", body);
    EXPECT_EQ(exchange->response().content_type, "text/event-stream; charset=utf-8");
    Streamed seen;
    const auto events = sse_events(exchange->bytes());
    EXPECT_FALSE(events.empty());
    EXPECT_EQ(events.back(), "[DONE]");
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      const ordered_json frame = ordered_json::parse(events[i]);
      EXPECT_EQ(frame["object"], "text_completion");
      EXPECT_TRUE(frame["id"].get<std::string>().starts_with("cmpl-"));
      if (frame["choices"].empty()) {
        EXPECT_TRUE(with_usage);
        EXPECT_EQ(i + 2, events.size());
        seen.usage = frame["usage"];
        continue;
      }
      const ordered_json& choice = frame["choices"][0];
      const int64_t index = choice["index"];
      EXPECT_EQ(seen.ends.count(index), 0u) << "something behind the end";
      seen.texts[index] += choice["text"].get<std::string>();
      if (!choice["logprobs"].is_null() && index == 0) {
        for (const auto& [key, list] : choice["logprobs"].items()) {
          for (const auto& value : list) seen.logprobs[key].push_back(value);
        }
      }
      if (!choice["finish_reason"].is_null()) seen.ends[index] = choice;
    }
    EXPECT_EQ(seen.usage.is_null(), !with_usage);
    return seen;
  }
  ordered_json refused(const ordered_json& body) { return api.refused("/v1/completions", body.dump()); }
  const std::vector<TokenId>& prompt(size_t back = 0) {
    return (api.engine.submitted.end() - 1 - static_cast<std::ptrdiff_t>(back))->prompt;
  }

  Api api;
};

TEST_F(Completions, WholeAndStreamed) {
  api.says("some text" + kEnd);
  const ordered_json answer = complete({{"prompt", "once"}, {"max_tokens", 100}});
  EXPECT_EQ(answer["object"], "text_completion");
  const ordered_json& choice = answer["choices"][0];
  EXPECT_EQ(choice["text"], "some text") << "the stop token is not shown";
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["stop_reason"].is_null());
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 10);
  EXPECT_EQ(prompt(), api.tokenizer.encode_text("once"));
  const Streamed seen = stream({{"prompt", "once"}, {"max_tokens", 100}}, true);
  EXPECT_EQ(seen.texts.at(0), "some text");
  EXPECT_EQ(seen.usage, answer["usage"]);
  EXPECT_EQ(complete({{"prompt", "x"}, {"skip_special_tokens", false}})["choices"][0]["text"], "some text" + kEnd);
}

TEST_F(Completions, SixteenTokensByDefault) {
  api.says(std::string(100, 'x'));
  const ordered_json answer = complete({{"prompt", "p"}});
  EXPECT_EQ(answer["choices"][0]["text"], std::string(16, 'x'));
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
}

TEST_F(Completions, PromptsInAllForms) {
  api.says("a");
  complete({{"prompt", {72, 105}}});
  EXPECT_EQ(prompt(), api.tokenizer.encode_text("Hi"));
  const ordered_json two = complete({{"prompt", {"one", "two"}}, {"n", 2}});
  ASSERT_EQ(two["choices"].size(), 4u);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(two["choices"][static_cast<size_t>(i)]["index"], i);
  EXPECT_EQ(prompt(1), api.tokenizer.encode_text("one"));
  EXPECT_EQ(prompt(0), api.tokenizer.encode_text("two"));
  EXPECT_EQ(two["usage"]["prompt_tokens"], 6);
  complete({{"prompt", {{72}, {105, 33}}}});
  EXPECT_EQ(prompt(0).size(), 2u);
  EXPECT_EQ(stream({{"prompt", {"one", "two"}}}).ends.size(), 2u);
  // Control names are text unless asked for.
  complete({{"prompt", "a<|open|>"}});
  EXPECT_EQ(prompt(), api.tokenizer.encode_text("a<|open|>"));
  complete({{"prompt", "a<|open|>"}, {"parse_special", true}});
  EXPECT_EQ(prompt(), api.tokenizer.encode_control("a<|open|>"));
}

TEST_F(Completions, Refusals) {
  EXPECT_EQ(refused(ordered_json::object())["param"], "prompt");
  EXPECT_EQ(refused({{"prompt", 3}})["param"], "prompt");
  EXPECT_EQ(refused({{"prompt", ""}})["param"], "prompt");
  EXPECT_EQ(refused({{"prompt", ordered_json::array()}})["param"], "prompt");
  EXPECT_EQ(refused({{"prompt", {"a", 3}}})["param"], "prompt[1]");
  EXPECT_EQ(refused({{"prompt", {3, "a"}}})["param"], "prompt[1]");
  EXPECT_EQ(refused({{"prompt", {512}}})["param"], "prompt[0]");
  EXPECT_EQ(refused({{"prompt", {{-1}}}})["param"], "prompt[0][0]");
  EXPECT_EQ(refused({{"prompt", {"a", ""}}})["param"], "prompt[1]");
  EXPECT_EQ(refused({{"prompt", "a"}, {"suffix", "z"}})["param"], "suffix");
  EXPECT_EQ(refused({{"prompt", "a"}, {"suffix", 3}})["param"], "suffix");
  EXPECT_EQ(refused({{"prompt", "a"}, {"best_of", 2}})["param"], "best_of");
  EXPECT_EQ(refused({{"prompt", "a"}, {"logprobs", -1}})["param"], "logprobs");
  EXPECT_EQ(refused({{"prompt", "a"}, {"logprobs", true}})["param"], "logprobs");
  EXPECT_EQ(refused({{"prompt", "a"}, {"echo", 1}})["param"], "echo");
  EXPECT_EQ(refused({{"prompt", "a"}, {"max_tokens", 0}})["param"], "max_tokens");
  api.engine.model_facts.context_limit = 3;
  EXPECT_EQ(refused({{"prompt", "abc"}})["code"], "context_length_exceeded");
  complete({{"prompt", "ab"}, {"best_of", 2}, {"n", 2}});
}

TEST_F(Completions, OnePromptOfSeveralRefusedEndsAll) {
  api.says("abc");
  api.engine.refusal = Status::exhausted("full");
  EXPECT_EQ(api.send("/v1/completions", {{"prompt", {"a", "b"}}})->response().status, 429);
  EXPECT_EQ(api.engine.num_live(), 0u);
}

TEST_F(Completions, StopStringsAndTokens) {
  api.says("one EN two END three");
  const ordered_json body = {{"prompt", "p"}, {"stop", "END"}, {"max_tokens", 100}};
  const ordered_json choice = complete(body)["choices"][0];
  EXPECT_EQ(choice["text"], "one EN two ");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], "END");
  const Streamed seen = stream(body);
  EXPECT_EQ(seen.texts.at(0), "one EN two ");
  EXPECT_EQ(seen.ends.at(0)["stop_reason"], "END");
  const ordered_json by_token = complete({{"prompt", "p"}, {"stop_token_ids", {69}}})["choices"][0];
  EXPECT_EQ(by_token["text"], "one E");
  EXPECT_EQ(by_token["stop_reason"], 69);
}

TEST_F(Completions, Echo) {
  api.says("日本" + kEnd);
  const ordered_json body = {{"prompt", "a é "}, {"echo", true}};
  EXPECT_EQ(complete(body)["choices"][0]["text"], "a é 日本");
  EXPECT_EQ(stream(body).texts.at(0), "a é 日本");
  // A stop string in the prompt is none of the reply's.
  EXPECT_EQ(complete({{"prompt", "a END b"}, {"echo", true}, {"stop", "END"}})["choices"][0]["text"], "a END b日本");
}

TEST_F(Completions, Logprobs) {
  api.says("xyé" + kEnd);
  const ordered_json body = {{"prompt", "ab"}, {"logprobs", 2}, {"echo", true}};
  const ordered_json choice = complete(body)["choices"][0];
  const ordered_json& logprobs = choice["logprobs"];
  EXPECT_TRUE(api.engine.submitted.back().prompt_logprobs);
  EXPECT_EQ(api.engine.submitted.back().logprobs, 2);
  EXPECT_EQ(logprobs["tokens"], (ordered_json{"a", "b", "x", "y", "\uFFFD", "\uFFFD", kEnd}));
  EXPECT_EQ(logprobs["text_offset"], (ordered_json{0, 1, 2, 3, 4, 4, 5}));
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null()) << "nothing predicts the first token";
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  EXPECT_FLOAT_EQ(logprobs["token_logprobs"][2].get<float>(), api.engine.logprob_of(TokenId('x')));
  EXPECT_EQ(logprobs["top_logprobs"][2].size(), 2u);
  EXPECT_FLOAT_EQ(logprobs["top_logprobs"][2]["x"].get<float>(), api.engine.logprob_of(TokenId('x')));
  const Streamed seen = stream(body);
  EXPECT_EQ(seen.logprobs, logprobs);
  api.engine.logprob_of = [](TokenId) { return -INFINITY; };
  EXPECT_EQ(complete({{"prompt", "a"}, {"logprobs", 0}})["choices"][0]["logprobs"]["token_logprobs"][0], -9999.0);
  EXPECT_FALSE(api.engine.submitted.back().prompt_logprobs);
}

TEST_F(Completions, CharactersAreWholeInEveryFrame) {
  api.says("日本語\xF0\x9F\x98\x80");
  const Streamed seen = stream({{"prompt", "p"}});
  EXPECT_EQ(seen.texts.at(0), "日本語\xF0\x9F\x98\x80");
  api.says("ok\xE6\x97");
  EXPECT_EQ(stream({{"prompt", "p"}}).texts.at(0), "ok\uFFFD") << "cut off at the end";
  EXPECT_EQ(complete({{"prompt", "p"}})["choices"][0]["text"], "ok\uFFFD");
}

TEST_F(Completions, TokenIds) {
  api.says("ab" + kEnd);
  const ordered_json choice = complete({{"prompt", "p"}, {"return_token_ids", true}})["choices"][0];
  EXPECT_EQ(choice["token_ids"], (ordered_json{97, 98, api.tokenizer.control_id(kEnd)->value}));
  EXPECT_EQ(choice["prompt_token_ids"], ordered_json{112});
}

}  // namespace
}  // namespace tandem::test

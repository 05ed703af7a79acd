// Every field of a chat request: what reaches the engine, and what is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api_harness.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;

class ChatFields : public ::testing::Test {
 protected:
  const EngineRequest& sent(const ordered_json& more) {
    api.chat(with(kHello, more));
    EXPECT_FALSE(api.engine.submitted.empty());
    return api.engine.submitted.back();
  }
  void expect_refused(const ordered_json& more, const std::string& param) {
    const ordered_json error = api.refused_chat(with(kHello, more));
    EXPECT_EQ(error["param"], param) << more.dump() << "\n" << error;
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("expected")) << more.dump();
  }

  Api api;
};

TEST_F(ChatFields, Defaults) {
  const EngineRequest& request = sent({});
  EXPECT_EQ(request.sampling.temperature, 1.0);
  EXPECT_EQ(request.sampling.top_p, 0.95);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.0);
  EXPECT_FALSE(request.sampling.seed);
  EXPECT_EQ(request.num_candidates, 1);
  EXPECT_FALSE(request.logprobs);
  EXPECT_EQ(request.max_tokens, 4096 - static_cast<int64_t>(request.prompt.size())) << "the room that is left";
  EXPECT_EQ(request.stop_tokens, toy_options(api.tokenizer).stop_tokens);
  EXPECT_EQ(request.scope.salt, "");
  EXPECT_EQ(request.scope.owner, "");
  EXPECT_TRUE(request.id.starts_with("chatcmpl-"));
  EXPECT_EQ(request.id.size(), 9u + 24u);
}

TEST_F(ChatFields, SamplingReachesTheEngine) {
  const EngineRequest& request = sent({{"temperature", 0.5},
                                       {"top_p", 0.25},
                                       {"top_k", 7},
                                       {"min_p", 0.125},
                                       {"repetition_penalty", 1.5},
                                       {"presence_penalty", -2},
                                       {"frequency_penalty", 2.0},
                                       {"typical_p", 1},
                                       {"logit_bias", {{"5", -100}, {"6", 1.5}}},
                                       {"n", 3},
                                       {"min_tokens", 4},
                                       {"priority", -3},
                                       {"cache_salt", "s"},
                                       {"max_tokens", 9}});
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 0.25);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_EQ(request.sampling.min_p, 0.125);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(request.sampling.presence_penalty, -2.0);
  EXPECT_EQ(request.sampling.frequency_penalty, 2.0);
  ASSERT_EQ(request.sampling.logit_bias.size(), 2u);
  EXPECT_EQ(request.sampling.logit_bias[0].token, TokenId(5));
  EXPECT_EQ(request.sampling.logit_bias[0].bias, -100.f);
  EXPECT_EQ(request.num_candidates, 3);
  EXPECT_EQ(request.min_tokens, 4);
  EXPECT_EQ(request.priority, -3);
  EXPECT_EQ(request.scope.salt, "s");
  EXPECT_EQ(request.max_tokens, 9);
}

TEST_F(ChatFields, SeedsAreAny64Bits) {
  EXPECT_EQ(sent({{"seed", 0}}).sampling.seed, 0u);
  EXPECT_EQ(sent({{"seed", -1}}).sampling.seed, UINT64_MAX);
  EXPECT_EQ(sent({{"seed", UINT64_MAX}}).sampling.seed, UINT64_MAX);
  EXPECT_EQ(sent({{"seed", INT64_MIN}}).sampling.seed, uint64_t{1} << 63);
  expect_refused({{"seed", 1.5}}, "seed");
  const std::string body = R"({"messages":[{"role":"user","content":"x"}],"seed":18446744073709551616})";
  EXPECT_EQ(api.refused("/v1/chat/completions", body)["param"], "seed");
}

TEST_F(ChatFields, MaxTokens) {
  EXPECT_EQ(sent({{"max_completion_tokens", 3}, {"max_tokens", 9}}).max_tokens, 3) << "the first name wins";
  EXPECT_EQ(sent({{"max_tokens", 1}}).max_tokens, 1);
  const auto room = 4096 - static_cast<int64_t>(api.engine.submitted.back().prompt.size());
  EXPECT_EQ(sent({{"max_tokens", 131072}}).max_tokens, room) << "clamped";
  EXPECT_EQ(sent({{"max_tokens", 5.0}}).max_tokens, 5);
  api.says("abcdef");
  const ordered_json answer = api.chat(with(kHello, {{"max_tokens", 1}, {"thinking", false}}));
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "a");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 1);
}

TEST_F(ChatFields, AContextThatIsFullNamesBothNumbers) {
  const auto size = static_cast<int64_t>(sent({}).prompt.size());
  api.engine.model_facts.context_limit = size + 1;
  EXPECT_EQ(sent({}).max_tokens, 1);
  api.engine.model_facts.context_limit = size;
  const ordered_json error = api.refused_chat(kHello);
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["param"], "messages");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(cat("maximum context length is ", size, " tokens")));
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(cat("result in ", size, " tokens")));
}

TEST_F(ChatFields, StopTokens) {
  const auto& request = sent({{"stop_token_ids", {65, 66}}});
  EXPECT_EQ(request.stop_tokens[0], TokenId(65));
  EXPECT_EQ(request.stop_tokens.size(), 4u);
  EXPECT_EQ(sent({{"stop_token_ids", {65}}, {"ignore_eos", true}}).stop_tokens, std::vector<TokenId>{TokenId(65)});
  EXPECT_TRUE(sent({{"ignore_eos", true}}).stop_tokens.empty());
}

TEST_F(ChatFields, IgnoreEosRunsToTheLimit) {
  api.says("t" + kAnswer + "x" + kDone + "more text");
  const ordered_json answer = api.chat(with(kHello, {{"ignore_eos", true}}));
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "x");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
}

TEST_F(ChatFields, RangesAndTypesAreRefusedByName) {
  const std::vector<std::pair<std::string, std::vector<ordered_json>>> cases = {
      {"temperature", {-0.1, 2.1, "1", true, ordered_json::array()}},
      {"top_p", {-0.1, 1.1, "x"}},
      {"top_k", {-2, 1.5, "x", 4294967296}},
      {"min_p", {-1, 2, "x"}},
      {"typical_p", {0.5, "x"}},
      {"repetition_penalty", {0, -1, "x"}},
      {"presence_penalty", {-2.1, 2.1, "x"}},
      {"frequency_penalty", {-2.1, 2.1, "x"}},
      {"logit_bias", {3, ordered_json::array(), {{"x", 1}}, {{"-1", 1}}, {{"512", 1}}, {{"007", 1}}}},
      {"logit_bias.5", {{{"5", "x"}}, {{"5", 101}}}},
      {"n", {0, -1, 129, 1.5, "2"}},
      {"max_tokens", {0, -1, 1.5, "x"}},
      {"max_completion_tokens", {0, "x"}},
      {"min_tokens", {-1, "x"}},
      {"stop", {3, "", ordered_json::object(), true, std::vector<std::string>(17, "a")}},
      {"stop[1]", {{"a", 3}, {"a", ""}}},
      {"stop_token_ids", {3, "x"}},
      {"stop_token_ids[0]", {{-1}, {512}, {"x"}}},
      {"include_stop_str_in_output", {"x", 1}},
      {"ignore_eos", {"x", 1}},
      {"stream", {"true", 1}},
      {"stream_options", {true, "x"}},
      {"stream_options.include_usage", {{{"include_usage", "x"}}}},
      {"stream_options.continuous_usage_stats", {{{"continuous_usage_stats", 1}}}},
      {"stream_options.include_internal_content", {{{"include_internal_content", 1}}}},
      {"logprobs", {"x", 3}},
      {"top_logprobs", {-1, 21, "x", 3}},
      {"tools", {3, "x", ordered_json::object()}},
      {"tools[0]", {{3}}},
      {"tools[0].function", {{{{"type", "function"}}}}},
      {"tools[0].function.name", {{{{"function", {{"name", 3}}}}}, {{{"function", {{"name", ""}}}}}}},
      {"tool_choice", {3, "maybe", "required", {{"type", "function"}, {"function", {{"name", "f"}}}}}},
      {"tool_choice.function.name", {ordered_json{{"type", "function"}}, ordered_json{{"function", {{"name", 3}}}}}},
      {"parallel_tool_calls", {"x", 1}},
      {"stream_tool_arguments", {"x", 1}},
      {"response_format", {3, "json_object"}},
      {"response_format.type", {ordered_json::object(), {{"type", "xml"}}, {{"type", 3}}}},
      {"response_format.json_schema",
       {{{"type", "json_schema"}}, {{"type", "json_schema"}, {"json_schema", {{"schema", 3}}}}}},
      {"guided_json", {3, true}},
      {"guided_regex", {"a+"}},
      {"guided_choice", {{"a", "b"}}},
      {"grammar", {"root ::= x"}},
      {"structured_outputs", {3}},
      {"structured_outputs.regex", {{{"regex", "a+"}}}},
      {"structured_outputs.json", {{{"json", 3}}}},
      {"reasoning_effort", {3, "ultra"}},
      {"reasoning.effort", {{{"effort", "ultra"}}}},
      {"reasoning", {3}},
      {"thinking", {3, "on"}},
      {"thinking.type", {{{"type", "maybe"}}}},
      {"chat_template_kwargs", {3}},
      {"chat_template_kwargs.thinking", {{{"thinking", 3}}}},
      {"include_reasoning", {"x", 1}},
      {"separate_reasoning", {"x", 1}},
      {"add_generation_prompt", {"x", 1}},
      {"continue_final_message", {"x", 1}},
      {"skip_special_tokens", {"x", 1}},
      {"return_token_ids", {"x", 1}},
      {"explain_cache", {"x", 1}},
      {"priority", {1.5, "x", 4294967296}},
      {"request_id", {3}},
      {"cache_salt", {3}},
      {"prompt_cache_key", {3}},
      {"user", {3}},
      {"safety_identifier", {3}},
      {"service_tier", {3}},
      {"metadata", {3}},
      {"store", {3}},
      {"model", {3, true, ordered_json::array()}},
  };
  for (const auto& [param, values] : cases) {
    const std::string key = param.substr(0, param.find_first_of(".["));
    for (const ordered_json& value : values) expect_refused({{key, value}}, param);
  }
  expect_refused({{"max_tokens", 3}, {"min_tokens", 4}}, "min_tokens");
  expect_refused({{"response_format", {{"type", "json_object"}}}, {"guided_json", ordered_json::object()}},
                 "guided_json");
}

// null is absent, whatever the field.
TEST_F(ChatFields, NullIsAbsent) {
  ordered_json body = kHello;
  for (const char* key : {"temperature",
                          "top_p",
                          "n",
                          "stop",
                          "seed",
                          "tools",
                          "tool_choice",
                          "response_format",
                          "logit_bias",
                          "stream",
                          "stream_options",
                          "max_tokens",
                          "logprobs",
                          "top_logprobs",
                          "thinking",
                          "reasoning_effort",
                          "user",
                          "metadata",
                          "model",
                          "stop_token_ids",
                          "cache_salt"}) {
    body[key] = nullptr;
  }
  EXPECT_EQ(api.chat(body)["model"], "toy");
}

TEST_F(ChatFields, UnknownFieldsAreIgnored) {
  sent({{"no_such_field", {{"a", 1}}},
        {"metadata", {{"k", "v"}}},
        {"store", true},
        {"user", "u"},
        {"service_tier", "auto"},
        {"safety_identifier", "i"},
        {"prompt_cache_key", "k"},
        {"request_id", "mine"}});
}

TEST_F(ChatFields, Messages) {
  const auto param = [&](const std::string& messages) {
    return api.refused("/v1/chat/completions", R"({"messages":)" + messages + "}")["param"];
  };
  EXPECT_EQ(param("3"), "messages");
  EXPECT_EQ(param("[]"), "messages");
  EXPECT_EQ(param("[3]"), "messages[0]");
  EXPECT_EQ(param(R"([{"role":"user"}])"), "messages[0].content");
  EXPECT_EQ(param(R"([{"role":3,"content":"x"}])"), "messages[0].role");
  EXPECT_EQ(param(R"([{"role":"user","content":3}])"), "messages[0].content");
  EXPECT_EQ(param(R"([{"role":"user","content":[3]}])"), "messages[0].content[0]");
  EXPECT_EQ(param(R"([{"role":"user","content":[{"type":"text","text":3}]}])"), "messages[0].content[0].text");
  EXPECT_EQ(param(R"([{"role":"user","content":[{"type":"video_url"}]}])"), "messages[0].content[0].type");
  EXPECT_EQ(param(R"([{"role":"user","content":"x","name":3}])"), "messages[0].name");
  EXPECT_EQ(param(R"([{"role":"assistant","content":"x","reasoning_content":3}])"), "messages[0].reasoning_content");
  EXPECT_EQ(param(R"([{"role":"assistant","tool_calls":3}])"), "messages[0].tool_calls");
  EXPECT_EQ(param(R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":[]}}]}])"),
            "messages[0].tool_calls[0].function.arguments");
  EXPECT_EQ(param(R"([{"role":"tool","content":"x","tool_call_id":{}}])"), "messages[0].tool_call_id");
  EXPECT_EQ(param(R"([{"role":"system","tools":3}])"), "messages[0].tools");
  EXPECT_EQ(param(R"([{"role":"assistant","content":"x","partial":3}])"), "messages[0].partial");
}

TEST_F(ChatFields, ImagesAreRefusedClearly) {
  for (const char* source : {"data:image/png;base64,AAAA", "https://example.org/a.png", "file:///etc/passwd"}) {
    const ordered_json part = {{"type", "image_url"}, {"image_url", {{"url", source}}}};
    ordered_json body = kHello;
    body["messages"][0]["content"] = {{{"type", "text"}, {"text", "see"}}, part};
    const ordered_json error = api.refused_chat(body);
    EXPECT_EQ(error["param"], "messages[0].content[1]");
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("no vision"));
  }
}

TEST_F(ChatFields, BrokenBodies) {
  for (const std::string body :
       {"", "{", "[]", "3", "nul", "{\"messages\":[}", "{\"messages\":\"\xff\"}", "\xef\xbb\xbf"}) {
    const ordered_json error = api.refused("/v1/chat/completions", body);
    EXPECT_EQ(error["type"], "invalid_request_error") << body;
    EXPECT_TRUE(error["param"].is_null()) << body;
  }
  const std::string deep =
      R"({"messages":[{"role":"user","content":"x"}],"x":)" + std::string(200, '[') + std::string(200, ']') + "}";
  EXPECT_THAT(api.refused("/v1/chat/completions", deep)["message"].get<std::string>(), HasSubstr("nested"));
  const std::string fits =
      R"({"messages":[{"role":"user","content":"x"}],"x":)" + std::string(126, '[') + std::string(126, ']') + "}";
  EXPECT_EQ(api.finish(api.begin("POST", "/v1/chat/completions", fits))->response().status, 200);
}

TEST_F(ChatFields, LoneSurrogatesAreReplaced) {
  api.finish(api.begin("POST", "/v1/chat/completions", R"({"messages":[{"role":"user","content":"a\ud800b"}]})"));
  const auto text = api.tokenizer.decode(api.engine.submitted.back().prompt, true).value();
  EXPECT_THAT(text, HasSubstr("a\xEF\xBF\xBD"
                              "b"));
}

TEST_F(ChatFields, ModelsAreMatchedBeforeAnyFrame) {
  EXPECT_EQ(api.chat(with(kHello, {{"model", "toy-alias"}}))["model"], "toy-alias");
  EXPECT_EQ(api.chat(kHello)["model"], "toy");
  const ordered_json error = api.refused_chat(with(kHello, {{"model", "gpt"}, {"stream", true}}), 404);
  EXPECT_EQ(error["code"], "model_not_found");
  EXPECT_EQ(error["param"], "model");
  ApiOptions options = toy_options(api.tokenizer);
  options.accept_any_model = true;
  Api any(options);
  EXPECT_EQ(any.chat(with(kHello, {{"model", "gpt"}}))["model"], "gpt");
}

TEST_F(ChatFields, OwnersAreKeysNobodyCanRead) {
  auto keys = ApiKeys::create({"secret-key", "other-key"});
  ASSERT_TRUE(keys.is_ok());
  Api guarded(std::nullopt, nullptr, std::move(keys).value());
  const auto owner = [&](HttpHeaders headers) {
    guarded.send("/v1/chat/completions", kHello, std::move(headers));
    return guarded.engine.submitted.back().scope.owner;
  };
  const std::string bearer = owner({{"authorization", "Bearer secret-key"}});
  EXPECT_EQ(owner({{"x-api-key", "secret-key"}}), bearer);
  EXPECT_NE(owner({{"x-api-key", "other-key"}}), bearer);
  EXPECT_NE(bearer, "");
  EXPECT_EQ(bearer.find("secret"), std::string::npos);
  EXPECT_EQ(guarded.get("/v1/models")->response().status, 401);
  EXPECT_EQ(guarded.send("/v1/chat/completions", kHello)->response().status, 401);
  EXPECT_EQ(guarded.get("/health")->response().status, 200);
  api.send("/v1/chat/completions", kHello, {{"x-api-key", "any"}});
  EXPECT_EQ(api.engine.submitted.back().scope.owner, "") << "without keys all are one";
}

TEST(ChatStrictVendor, RefusesWhatTheHostedApiRefuses) {
  ApiOptions options = toy_options(named_tokenizer(single_bytes()));
  options.strict_vendor = true;
  Api api(options);
  for (const double temperature : {1.1, 2.0, 0.0}) {
    EXPECT_EQ(api.refused_chat(with(kHello, {{"temperature", temperature}}))["message"],
              "temperature: invalid temperature: only 1 is allowed for this model");
  }
  const auto refused = [&](const ordered_json& more) { return api.refused_chat(with(kHello, more))["param"]; };
  EXPECT_EQ(refused({{"temperature", -0.1}}), "temperature");
  EXPECT_EQ(refused({{"top_p", 0.9}}), "top_p");
  EXPECT_EQ(refused({{"presence_penalty", 0.1}}), "presence_penalty");
  EXPECT_EQ(refused({{"frequency_penalty", 0.1}}), "frequency_penalty");
  EXPECT_EQ(refused({{"n", 2}}), "n");
  ordered_json tools = kOneTool;
  tools["tools"][0]["function"]["name"] = "1st";
  EXPECT_EQ(refused(tools), "tools[0].function.name");
  api.chat(with(kHello, {{"temperature", 1}, {"top_p", 0.95}, {"n", 1}, {"presence_penalty", 0}}));
  Api lenient;
  lenient.chat(with(kHello, tools));
}

}  // namespace
}  // namespace tandem::test

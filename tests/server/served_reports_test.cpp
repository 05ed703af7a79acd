// Reports of users of other servers (tests/data/field-reports.md by number, and the table of chat problems by the
// reports' own names): what this server does instead.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api_harness.h"
#include "support/effort.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ServedReports : public ::testing::Test {
 protected:
  // Whole and streamed, which agree.
  SeenMessage reply(const std::string& script, const ordered_json& body = kHello,
                    EngineFinish end = EngineFinish::kLength) {
    api.says(script, end);
    const SeenMessage message = seen_message(api.chat(body)["choices"][0]);
    const SeenStream streamed = api.stream(body);
    expect_same_message(streamed.messages.at(0), message);
    return message;
  }
  std::string prompt_text() { return api.tokenizer.decode(api.engine.submitted.back().prompt, false).value(); }

  Api api;
  const ordered_json tools_body = with(kHello, kOneTool);
  const std::string call_f = open("call tool=\"f\"") + argument("a", "number", "1") + close("call");
};

// vllm 51399, 51412: a reply that closes the message and not the response.
TEST_F(ServedReports, Chat01CloseMessageEndsEverything) {
  const SeenMessage seen = reply("t" + kAnswer + "answer" + close("message") + "junk" + kEnd);
  EXPECT_EQ(seen.content, "answer");
  EXPECT_EQ(seen.finish, "stop");
}

// vllm 57353: a reply cut inside thinking is reasoning in both forms.
TEST_F(ServedReports, Chat02CutInsideThinking) {
  const SeenMessage seen = reply("long thought");
  EXPECT_EQ(seen.reasoning, "long thought");
  EXPECT_EQ(seen.content, "");
  EXPECT_EQ(seen.finish, "length");
  EXPECT_EQ(api.chat(kHello)["choices"][0]["message"]["content"], "");
}

// vllm 53246: calls without a closed think element.
TEST_F(ServedReports, Chat03CallsStraightFromThinking) {
  const SeenMessage seen = reply("t" + open("tools") + call_f + close("tools") + kEnd, tools_body);
  EXPECT_EQ(seen.calls.size(), 1u);
  EXPECT_EQ(seen.reasoning, "t");
  EXPECT_EQ(seen.finish, "tool_calls");
}

// sglang 32757: a header without its separator.
TEST_F(ServedReports, Chat05HeaderWithoutSeparator) {
  EXPECT_EQ(reply("t<|close|>think<|open|>response<|sep|>answer" + kDone).content, "answer");
}

// sglang 39583: calls though no tool was declared, or none was wanted.
TEST_F(ServedReports, Chat06UndeclaredCallsAreNotShown) {
  const std::string script = "t" + kAnswer + "x" + close("response") + open("tools") + call_f + close("tools") + kEnd;
  for (const ordered_json& body : {kHello, with(tools_body, {{"tool_choice", "none"}})}) {
    const SeenMessage seen = reply(script, body);
    EXPECT_EQ(seen.content, "x");
    EXPECT_TRUE(seen.calls.empty());
    EXPECT_EQ(seen.finish, "stop");
  }
  EXPECT_THAT(prompt_text(), HasSubstr("tool_choice=none")) << "declared, and told not to call";
  EXPECT_THAT(prompt_text(), HasSubstr("# Tools"));
}

// vllm-ascend 13204, report 37: nothing a model writes is an error.
TEST_F(ServedReports, Chat09AndReport37OddArguments) {
  api.engine.model_facts.context_limit = 1 << 20;
  const std::vector<std::string> values = {"",
                                           " ",
                                           "bare",
                                           "{",
                                           "}",
                                           "[1,",
                                           "{'a':1}",
                                           "{\"a\":1,}",
                                           "nul",
                                           "1e",
                                           "--1",
                                           "\"",
                                           "\\",
                                           "\n\n",
                                           "日本",
                                           "True",
                                           "NaN",
                                           "Infinity",
                                           "0x10",
                                           "1,2",
                                           "{\"a\":{\"b\":[}}",
                                           std::string(5000, '[')};
  for (const std::string& value : values) {
    for (const std::string type : {"number", "string", "object", "array", "boolean", "null", "what"}) {
      const SeenMessage seen = reply(
          "t" + kAnswer + in_call(argument("k", type, value)) + close("call") + close("tools") + kEnd, tools_body);
      ASSERT_EQ(seen.calls.size(), 1u) << type << " " << value.substr(0, 40);
      const ordered_json arguments = ordered_json::parse(seen.calls[0].arguments, nullptr, false);
      EXPECT_FALSE(arguments.is_discarded()) << seen.calls[0].arguments.substr(0, 40);
      EXPECT_EQ(seen.content, "");
    }
    // A raw json element is the arguments as the model wrote them.
    const SeenMessage raw =
        reply("t" + kAnswer + in_call(open("json") + value + close("json")) + close("call") + close("tools") + kEnd,
              tools_body);
    ASSERT_EQ(raw.calls.size(), 1u);
  }
}

// ATOM 1727: only the four standard values.
TEST_F(ServedReports, Chat11FinishReasons) {
  EXPECT_EQ(reply("t" + kAnswer + "x" + kEnd, kHello, EngineFinish::kStop).finish, "stop");
  EXPECT_EQ(reply("t" + kAnswer + "x[EOS]", kHello, EngineFinish::kStop).finish, "stop");
}

// smg 2421: markers in a user's text stay text, the end marker is never shown.
TEST_F(ServedReports, Chat12MarkersInUserText) {
  ordered_json body = kHello;
  body["messages"][0]["content"] = "say <|end_of_msg|> now";
  const SeenMessage seen = reply("t" + kAnswer + "ok" + kEnd, body);
  EXPECT_EQ(seen.content, "ok");
  int ends = 0;
  for (const TokenId id : api.engine.submitted.back().prompt) ends += id == *api.tokenizer.control_id(kEnd) ? 1 : 0;
  EXPECT_EQ(ends, 2) << "of the effort note and of the user's message";
}

// sglang 33003, report 43: the placeholder spelled out is text.
TEST_F(ServedReports, Chat13ImagePlaceholderIsText) {
  ordered_json body = kHello;
  body["messages"][0]["content"] = "a <|kimi_image_placeholder|> b";
  reply("t", body);
  EXPECT_THAT(prompt_text(), HasSubstr("a <|kimi_image_placeholder|> b"));
}

// sglang 39896: every switch is honoured, and thinking that is off leaks nowhere.
TEST_F(ServedReports, Chat14ThinkingOff) {
  for (const ordered_json& off :
       {ordered_json{{"thinking", {{"type", "disabled"}}}}, ordered_json{{"thinking", false}},
        ordered_json{{"reasoning_effort", "none"}}, ordered_json{{"chat_template_kwargs", {{"thinking", false}}}},
        ordered_json{{"chat_template_kwargs", {{"enable_thinking", false}}}}}) {
    const SeenMessage seen = reply("answer" + kDone, with(kHello, off));
    EXPECT_EQ(seen.content, "answer");
    EXPECT_EQ(seen.reasoning, "");
    EXPECT_THAT(prompt_text(), Not(HasSubstr("thinking_effort")));
  }
}

// unsloth 7619, dynamo 13120, report 55: the effort arrives from every field, and usage tells the reasoning.
TEST_F(ServedReports, Chat15AndReport55Effort) {
  const std::vector<std::pair<ordered_json, std::string>> cases = {
      {{{"reasoning_effort", "medium"}}, "high"},     {{{"reasoning", {{"effort", "low"}}}}, "low"},
      {{{"thinking", {{"effort", "xhigh"}}}}, "max"}, {{{"chat_template_kwargs", {{"thinking_effort", "low"}}}}, "low"},
      {{{"thinking_effort", "high"}}, "high"},        {ordered_json::object(), "max"}};
  for (const auto& [fields, effort] : cases) {
    api.says("ten chars!" + kAnswer + "x" + kDone);
    const ordered_json answer = api.chat(with(kHello, fields));
    EXPECT_THAT(prompt_text(), HasSubstr("`thinking_effort=" + effort + "`"));
    EXPECT_EQ(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 10);
  }
}

// new-api 7235, report 49: tools of a system message count, whatever their names.
TEST_F(ServedReports, Chat16AndReport49DynamicTools) {
  ordered_json body = kHello;
  body["messages"].push_back(ordered_json::parse(
      R"({"role":"system","tools":[{"type":"function","function":{"name":"find","parameters":{"type":"object","properties":{"城市":{"type":"string"},"😀":{"type":"string"}}}}}]})"));
  body["tool_choice"] = "required";
  body["thinking"] = false;
  const SeenMessage seen =
      reply(close("response") + open("tools") + open("call tool=\"find\"") + argument("城市", "string", "東京") +
                argument("😀", "string", "y") + close("call") + close("tools") + kEnd,
            body);
  EXPECT_THAT(prompt_text(), HasSubstr("城市"));
  EXPECT_THAT(prompt_text(), HasSubstr("tool_choice=required"));
  ASSERT_EQ(seen.calls.size(), 1u);
  EXPECT_EQ(seen.calls[0].arguments, R"({"城市": "東京", "😀": "y"})");
}

// kimi-cli 2531: any valid schema and name.
TEST_F(ServedReports, Chat20AnySchema) {
  ordered_json body = kHello;
  body["tools"] = ordered_json::parse(
      R"([{"type":"function","function":{"name":"1st-tool","parameters":{"$defs":{"x":{"type":["string","null"]}},"anyOf":[{"$ref":"#/$defs/x"}],"type":"object"}}}])");
  reply("t", body);
  EXPECT_THAT(prompt_text(), HasSubstr("1st-tool"));
}

// comfyui-mcp 2535: temperatures other than 1.
TEST_F(ServedReports, Chat21AnyTemperature) {
  for (const double temperature : {0.0, 0.2, 1.0, 2.0}) reply("t", with(kHello, {{"temperature", temperature}}));
}

// Kilo-Org 10986: a history without reasoning is accepted.
TEST_F(ServedReports, Chat22HistoryWithoutReasoning) {
  ordered_json body = kHello;
  body["messages"].push_back({{"role", "assistant"}, {"content", "hi"}});
  body["messages"].push_back({{"role", "user"}, {"content", "again"}});
  reply("t", body);
  EXPECT_THAT(prompt_text(), HasSubstr("<|open|>think<|sep|><|close|>think<|sep|><|open|>response<|sep|>hi"));
}

// llama.cpp (pwilkin) 20, reports 40, 41: the start is the prompt's, and an answer without a close is an answer.
TEST_F(ServedReports, Chat23AndReport40StartRegion) {
  EXPECT_EQ(reply("answer", with(kHello, {{"thinking", false}})).content, "answer");
  EXPECT_EQ(reply("think" + open("response") + "answer" + close("response")).content, "answer");
  // Spelled by the model as ordinary tokens.
  std::vector<TokenId> ids = api.tokenizer.encode_control("t" + kAnswer);
  const std::string spelled = "see <|close|>response<|sep|> here";
  for (const TokenId id : api.tokenizer.encode_text(spelled)) ids.push_back(id);
  api.engine.script = [&](const EngineRequest&, int64_t) { return FakeEngine::Reply{ids, EngineFinish::kLength, {}}; };
  EXPECT_EQ(seen_message(api.chat(kHello)["choices"][0]).content, spelled);
}

// SillyBunny 801: a prefill is continued as an answer, and only the continuation returned.
TEST_F(ServedReports, Chat29Prefill) {
  for (const ordered_json& mark : {ordered_json{{"partial", true}}, ordered_json::object()}) {
    ordered_json body = kHello;
    body["messages"].push_back(with({{"role", "assistant"}, {"content", "Dear"}}, mark));
    if (mark.empty()) body.update({{"continue_final_message", true}, {"add_generation_prompt", false}});
    const SeenMessage seen = reply(" reader" + kDone, body);
    EXPECT_EQ(seen.content, " reader");
    EXPECT_EQ(seen.reasoning, "");
    EXPECT_TRUE(prompt_text().ends_with("<|close|>think<|sep|><|open|>response<|sep|>Dear"));
  }
}

// Report 2: logits that are no numbers fail that request only.
TEST_F(ServedReports, Report02NonFiniteFailsOneRequest) {
  api.engine.script = [&](const EngineRequest& request, int64_t) {
    const bool is_bad = request.scope.salt == "bad";
    return FakeEngine::Reply{api.tokenizer.encode_control("t" + kAnswer + "fine" + (is_bad ? "" : kDone)),
                             is_bad ? EngineFinish::kError : EngineFinish::kStop,
                             is_bad ? Status::non_finite("logits: found a NaN") : Status()};
  };
  std::vector<std::shared_ptr<FakeExchange>> exchanges;
  for (int i = 0; i < 8; ++i)
    exchanges.push_back(
        api.begin("POST", "/v1/chat/completions", with(kHello, {{"cache_salt", i == 3 ? "bad" : ""}}).dump()));
  while (api.engine.step()) {
  }
  for (size_t i = 0; i < exchanges.size(); ++i) {
    exchanges[i]->run_tasks();
    EXPECT_EQ(exchanges[i]->response().status, i == 3 ? 500 : 200);
  }
}

// Report 34: a client that leaves at any place of any phase, prefill among them.
TEST_F(ServedReports, Report34DisconnectAnywhere) {
  api.says(std::string(60, 'x'));
  for (int steps = 0; steps < 60; ++steps) {
    const auto exchange = api.begin("POST", "/v1/chat/completions", with(kHello, {{"stream", steps % 2 == 0}}).dump());
    for (int i = 0; i < steps; ++i) {
      api.engine.step();
      exchange->run_tasks();
    }
    exchange->disconnect();
    api.engine.step();
    exchange->run_tasks();
    EXPECT_EQ(api.engine.num_live(), 0u);
  }
}

// Report 38: the first piece of a long argument comes with its first token.
TEST_F(ServedReports, Report38LongArgumentsAreStreamed) {
  const std::string value(20000, 'v');
  const std::string script =
      "t" + kAnswer + in_call(argument("file", "string", value)) + close("call") + close("tools") + kEnd;
  api.engine.model_facts.context_limit = 1 << 20;
  const SeenMessage buffered = reply(script, tools_body);
  ordered_json body = with(tools_body, {{"stream", true}, {"stream_tool_arguments", true}});
  const auto exchange = api.begin("POST", "/v1/chat/completions", body.dump());
  size_t steps = 0;
  while (exchange->bytes().find(R"("arguments":"v")") == std::string::npos && steps < script.size()) {
    api.engine.step();
    exchange->run_tasks();
    ++steps;
  }
  EXPECT_LT(steps, script.find('v', script.find("\"string\"")) + 5u) << "as soon as the model wrote it";
  api.finish(exchange);
  const SeenStream seen = ChatStreamChecker({}).check(exchange->bytes());
  expect_same_message(seen.messages.at(0), buffered);
}

// Report 50: tool_choice auto constrains nothing. What holds whatever the model writes: text beside the calls stays
// free, names and types are told as they were written, and arguments are one JSON object in which a key counts once.
TEST_F(ServedReports, Report50AutoChoiceTellsWhatWasWritten) {
  ordered_json body = kHello;
  for (const char* name : {"f", "g", "h"}) {
    body["tools"].push_back(
        {{"type", "function"},
         {"function",
          {{"name", name}, {"parameters", {{"type", "object"}, {"properties", {{"a", {{"type", "number"}}}}}}}}}});
  }
  body["tool_choice"] = "auto";
  const std::string calls = open("tools") + open("call tool=\"undeclared\"") + argument("a", "string", "x") +
                            close("call") + open("call tool=\"g\"") + argument("a", "number", "1") +
                            argument("a", "number", "2") + close("call") + close("tools");
  const SeenMessage seen = reply("t" + kAnswer + "free text" + close("response") + calls + kEnd, body);
  EXPECT_EQ(seen.content, "free text");
  EXPECT_EQ(seen.finish, "tool_calls");
  ASSERT_EQ(seen.calls.size(), 2u);
  EXPECT_EQ(seen.calls[0].name, "undeclared");
  EXPECT_EQ(ordered_json::parse(seen.calls[0].arguments), ordered_json({{"a", "x"}})) << "as written, not as declared";
  EXPECT_EQ(seen.calls[1].name, "g");
  EXPECT_EQ(ordered_json::parse(seen.calls[1].arguments), ordered_json({{"a", 2}}));
  EXPECT_EQ(seen.calls[1].arguments.find("\"a\""), seen.calls[1].arguments.rfind("\"a\"")) << "the last one counts";
  EXPECT_EQ(reply("t" + kAnswer + "no call" + kDone, body).content, "no call");
}

// Report 52: results out of order, repeated, without ids, unmatched.
TEST_F(ServedReports, Report52ToolResults) {
  const auto conversation = [&](const std::string& results) {
    return with(kOneTool,
                ordered_json::parse(
                    R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"","tool_calls":[
      {"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"b","type":"function","function":{"name":"g","arguments":"{}"}}]},)" +
                    results + "]}"));
  };
  reply("t",
        conversation(
            R"({"role":"tool","tool_call_id":"b","content":"RB"},{"role":"tool","tool_call_id":"a","content":"RA"})"));
  EXPECT_LT(prompt_text().find("RA"), prompt_text().find("RB"));
  EXPECT_THAT(prompt_text(), HasSubstr(R"(tool="f" index="1"<|sep|>RA)"));
  reply("t",
        conversation(
            R"({"role":"tool","tool_call_id":"a","content":"R1"},{"role":"tool","tool_call_id":"a","content":"R2"})"));
  reply("t",
        conversation(
            R"({"role":"tool","tool_call_id":"","content":"R1"},{"role":"tool","tool_call_id":"","content":"R2"})"));
  EXPECT_THAT(prompt_text(), HasSubstr(R"(tool="g" index="2"<|sep|>R2)"));
  const ordered_json error = api.refused_chat(conversation(
      R"({"role":"tool","tool_call_id":"x","content":"1"},{"role":"tool","tool_call_id":"y","content":"2"},{"role":"tool","tool_call_id":"z","content":"3"})"));
  EXPECT_EQ(error["param"], "messages");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("tool result 3"));
}

// Report 53: thirty turns with calls; at each turn the prompt is the one before, the reply and what the client added.
TEST_F(ServedReports, Report53LongToolConversation) {
  api.engine.model_facts.context_limit = 1 << 20;
  ordered_json body = tools_body;
  std::vector<TokenId> before;
  for (int turn = 0; turn < 30; ++turn) {
    const bool calls = turn % 3 != 2;
    const std::string answer = calls ? "" : cat("answer ", turn);
    const std::string tail = calls ? open("tools") + open("call tool=\"f\" index=\"1\"") +
                                         argument("n", "number", cat(turn)) + close("call") + close("tools")
                                   : "";
    const std::string script =
        cat("thought ", turn) + kAnswer + answer + close("response") + tail + close("message") + kEnd;
    api.says(script);
    const ordered_json message = api.chat(body)["choices"][0]["message"];
    const std::vector<TokenId>& prompt = api.engine.submitted.back().prompt;
    ASSERT_GE(prompt.size(), before.size());
    EXPECT_TRUE(std::equal(before.begin(), before.end(), prompt.begin())) << "turn " << turn;
    before = prompt;
    for (const TokenId id : api.tokenizer.encode_control(script)) before.push_back(id);
    body["messages"].push_back(message);
    if (calls) {
      body["messages"].push_back(
          {{"role", "tool"}, {"tool_call_id", message["tool_calls"][0]["id"]}, {"content", cat("result ", turn)}});
    } else {
      body["messages"].push_back({{"role", "user"}, {"content", cat("question ", turn)}});
    }
  }
}

// Report 61: no address is ever fetched; a reference to one is refused.
TEST_F(ServedReports, Report61NoAddressIsFetched) {
  for (const char* url :
       {"http://169.254.169.254/latest", "file:///etc/passwd", "ms://file", "data:image/jpeg;base64,broken"}) {
    ordered_json body = kHello;
    body["messages"][0]["content"] = {{{"type", "image_url"}, {"image_url", url}}};
    EXPECT_EQ(api.refused_chat(body)["param"], "messages[0].content[0]");
  }
  EXPECT_TRUE(api.engine.submitted.empty());
}

}  // namespace
}  // namespace tandem::test

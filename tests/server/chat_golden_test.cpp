// The published fixtures through the API: frames, replies, prompts, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api_harness.h"
#include "text/chat_request.h"
#include "text/xtml_renderer.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;

// The keys of a JSON value all the way down; what free values become is not looked at.
ordered_json key_shape(const ordered_json& value) {
  ordered_json shape;
  if (value.is_object()) {
    shape = ordered_json::object();
    for (const auto& [key, inner] : value.items()) shape[key] = key_shape(inner);
  } else if (value.is_array()) {
    shape = ordered_json::array();
    for (const auto& inner : value) shape.push_back(key_shape(inner));
  } else {
    shape = value.type_name();
  }
  return shape;
}

// Words that the published frames show as one increment each.
std::vector<TokenId> ids_with_words(const Tokenizer& tokenizer, size_t num_words, const std::string& script) {
  std::vector<TokenId> ids;
  for (const TokenId id : tokenizer.encode_control(script)) {
    ids.push_back(id);
    for (size_t word = 256; word < 256 + num_words; ++word) {
      const std::vector<TokenId> bytes =
          tokenizer.encode_text(tokenizer.token_bytes(TokenId(static_cast<int32_t>(word))));
      if (ids.size() < bytes.size()) continue;
      if (!std::equal(bytes.rbegin(), bytes.rend(), ids.rbegin())) continue;
      ids.resize(ids.size() - bytes.size());
      ids.emplace_back(static_cast<int32_t>(word));
    }
  }
  return ids;
}

TEST(ChatGolden, PublishedStreams) {
  const auto call = [](const std::string& zone) {
    return open("call tool=\"get_time\" index=\"1\"") + argument("tz", "string", zone) + close("call");
  };
  const std::map<std::string, std::string> replies = {
      {"thinking_with_usage", "Two plus" + kAnswer + "4." + kDone},
      {"two_tool_calls_no_usage_summary", "look" + kAnswer + close("response") + open("tools") + call("UTC") +
                                              call("CET") + close("tools") + close("message") + kEnd},
      {"truncated_in_think", "long thought"}};
  std::vector<std::string> tokens = single_bytes();
  const std::vector<std::string> words = {"Two", " plus", "look", "long thought"};
  tokens.insert(tokens.end(), words.begin(), words.end());
  const ordered_json fixture = chat_fixture("sse_stream_golden.json");
  ASSERT_EQ(fixture["streams"].size(), 3u);
  for (const auto& golden : fixture["streams"]) {
    const std::string name = golden["name"];
    SCOPED_TRACE(name);
    Api api(named_tokenizer(tokens));
    const auto ids = ids_with_words(api.tokenizer, words.size(), replies.at(name));
    api.engine.script = [&](const EngineRequest&, int64_t) {
      return FakeEngine::Reply{ids, EngineFinish::kLength, {}};
    };
    ordered_json body = with(kHello, {{"stream", true}, {"stream_options", golden["stream_options"]}});
    body["tools"] = {{{"type", "function"}, {"function", {{"name", "get_time"}}}}};
    const auto exchange = api.send("/v1/chat/completions", body);
    StreamRules rules;
    rules.include_usage = !golden["stream_options"].is_null();
    const SeenStream seen = ChatStreamChecker(rules).check(exchange->bytes());

    std::vector<std::string> expected;
    for (const auto& frame : golden["frames"]) {
      if (!frame.is_string()) expected.push_back(frame.dump());
    }
    ASSERT_EQ(seen.frames.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ordered_json wanted = ordered_json::parse(expected[i]);
      ordered_json found = seen.frames[i];
      EXPECT_EQ(key_shape(found).dump(), key_shape(wanted).dump()) << "keys, in this order";
      if (wanted["choices"].empty()) continue;
      // The visible part is the same; ids are free.
      for (ordered_json* frame : {&wanted, &found}) {
        ordered_json& delta = (*frame)["choices"][0]["delta"];
        if (delta.contains("tool_calls")) delta["tool_calls"][0].erase("id");
      }
      EXPECT_EQ(found["choices"][0]["delta"], wanted["choices"][0]["delta"]);
      EXPECT_EQ(found["choices"][0]["finish_reason"], wanted["choices"][0]["finish_reason"]);
    }
    EXPECT_TRUE(exchange->is_complete());
  }
}

TEST(ChatGolden, PublishedWholeAnswer) {
  Api api;
  api.says("Two plus" + kAnswer + "4." + kDone);
  const ordered_json wanted = chat_fixture("sse_stream_golden.json")["non_stream_example"];
  const ordered_json found = api.chat(kHello);
  EXPECT_EQ(key_shape(found).dump(), key_shape(wanted).dump());
  EXPECT_EQ(found["choices"][0]["message"], wanted["choices"][0]["message"]);
  EXPECT_EQ(found["object"], "chat.completion");
  EXPECT_EQ(found["usage"]["completion_tokens_details"]["reasoning_tokens"], 8);
}

std::vector<ReplyPiece> pieces_of(const ordered_json& events) {
  const std::map<std::string, std::string> names = {
      {"open", "<|open|>"}, {"close", "<|close|>"}, {"sep", "<|sep|>"}, {"end", "<|end_of_msg|>"}};
  std::vector<ReplyPiece> pieces;
  for (const auto& event : events) {
    const std::string kind = event[0];
    if (kind == "t") {
      pieces.push_back({event[1].get<std::string>(), false});
    } else {
      pieces.push_back({names.at(kind), true});
    }
  }
  return pieces;
}

void expect_parse_case(const SeenMessage& seen, const ordered_json& expected) {
  EXPECT_EQ(seen.reasoning,
            expected["reasoning_content"].is_null() ? "" : expected["reasoning_content"].get<std::string>());
  EXPECT_EQ(seen.content, expected["content"].is_null() ? "" : expected["content"].get<std::string>());
  EXPECT_EQ(seen.finish, expected["finish_reason"].get<std::string>());
  const auto& calls = expected["tool_calls"];
  ASSERT_EQ(seen.calls.size(), calls.size());
  std::set<std::string> ids;
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(seen.calls[i].name, calls[i]["name"].get<std::string>());
    EXPECT_TRUE(ids.insert(seen.calls[i].id).second) << "an id twice";
    if (calls[i].contains("arguments_raw")) {
      EXPECT_EQ(seen.calls[i].arguments, calls[i]["arguments_raw"].get<std::string>());
    } else {
      EXPECT_EQ(ordered_json::parse(seen.calls[i].arguments), calls[i]["arguments"]);
    }
  }
}

TEST(ChatGolden, ParseCasesWholeAndStreamed) {
  const ordered_json fixture = chat_fixture("k3_parse_cases.json");
  ASSERT_EQ(fixture["cases"].size(), 34u);
  for (const auto& item : fixture["cases"]) {
    SCOPED_TRACE(item["name"].get<std::string>());
    const auto pieces = pieces_of(item["events"]);
    std::vector<PieceVocabulary> feeds;
    feeds.emplace_back(pieces, "kimi_k3", whole_text);
    feeds.emplace_back(pieces, "kimi_k3", every_byte);
    for (uint32_t seed = 0; seed < 2; ++seed) feeds.emplace_back(pieces, "kimi_k3", random_cut(seed));
    for (PieceVocabulary& feed : feeds) {
      Api api(std::move(*feed.tokenizer));
      const auto end = item["stopped_by"] == "length" ? EngineFinish::kLength : EngineFinish::kStop;
      api.engine.script = [&](const EngineRequest&, int64_t) { return FakeEngine::Reply{feed.ids, end, {}}; };
      ordered_json body = with(kHello, kOneTool);
      body["thinking"] = item["thinking"];
      const ordered_json whole = api.chat(body);
      const SeenMessage message = seen_message(whole["choices"][0]);
      expect_parse_case(message, item["expect"]);
      const ordered_json& content = item["expect"]["content"];
      EXPECT_EQ(whole["choices"][0]["message"]["content"].is_null(), content.is_null());
      const SeenStream streamed = api.stream(body);
      expect_parse_case(streamed.messages.at(0), item["expect"]);
      EXPECT_EQ(streamed.messages.at(0).usage, whole["usage"]);
      api.engine.tokens_per_output = 3;
      expect_same_message(api.stream(body).messages.at(0), message);
      // Arguments as they are written: a call that is cut off was begun, and is not in the whole answer.
      body["stream_tool_arguments"] = true;
      const SeenMessage open_ended = api.stream(body).messages.at(0);
      EXPECT_EQ(open_ended.content, message.content);
      EXPECT_EQ(open_ended.finish, message.finish);
      ASSERT_GE(open_ended.calls.size(), message.calls.size());
      for (size_t i = 0; i < message.calls.size(); ++i) {
        // A repeated key stands twice in a streamed text; as a value the two are one.
        const ordered_json value = ordered_json::parse(open_ended.calls[i].arguments, nullptr, false);
        if (value.is_discarded()) {
          EXPECT_EQ(open_ended.calls[i].arguments, message.calls[i].arguments);
        } else {
          EXPECT_EQ(value, ordered_json::parse(message.calls[i].arguments, nullptr, false));
        }
      }
    }
  }
}

// Prompts: what the engine gets is what the renderer gives, segment by segment.
void expect_prompt(Api& api, const ordered_json& body, const std::vector<Segment>& segments) {
  api.engine.submitted.clear();
  const auto exchange = api.send("/v1/chat/completions", body);
  ASSERT_EQ(exchange->response().status, 200) << exchange->response().body;
  ASSERT_EQ(api.engine.submitted.size(), 1u);
  EXPECT_EQ(api.engine.submitted[0].prompt, encode_segments(api.tokenizer, segments));
}

TEST(ChatGolden, ServingCases) {
  Api api(chat_tokenizer());
  api.engine.model_facts.context_limit = 1 << 20;
  const ordered_json fixture = chat_fixture("k3_serving_cases.json");
  ASSERT_GE(fixture["cases"].size(), 6u);
  for (const auto& entry : fixture["cases"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    expect_prompt(api, entry["request"], segments_of(entry["segments"]));
    const auto shown = api.send("/apply-template", entry["request"]);
    EXPECT_EQ(ordered_json::parse(shown->response().body)["prompt"], entry["text"]);
  }
  for (const auto& entry : fixture["reject_with_400"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    const ordered_json error = api.refused_chat(entry["request"]);
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_TRUE(error["param"].is_string()) << error;
  }
}

bool has_image_part(const ChatRequest& request) {
  for (const Message& message : request.messages) {
    for (const ContentPart& part : message.content) {
      if (part.kind == ContentPart::Kind::kImage) return true;
    }
  }
  return false;
}

// The segments less the thinking-effort message, which the encoder's own cases do not state and the API always adds.
std::vector<Segment> without_effort(std::vector<Segment> segments) {
  ChatRequest note;
  note.add_generation_prompt = false;
  note.thinking.effort = ThinkingEffort::kMax;
  const auto found = render_xtml(note);
  EXPECT_TRUE(found.is_ok());
  const std::vector<Segment>& part = found.value();
  const auto at = std::search(segments.begin(), segments.end(), part.begin(), part.end());
  if (at != segments.end()) segments.erase(at, at + static_cast<std::ptrdiff_t>(part.size()));
  return segments;
}

// The encoder's own cases: those that are requests give the published segments through the API too.
TEST(ChatGolden, RenderCases) {
  Api api(chat_tokenizer());
  api.engine.model_facts.context_limit = 1 << 20;
  size_t num_sent = 0;
  size_t num_refused = 0;
  for (const char* file : {"k3_render_golden.json", "k3_render_extra.json"}) {
    const ordered_json fixture = chat_fixture(file);
    for (const auto& entry : fixture["cases"]) {
      SCOPED_TRACE(entry["name"].get<std::string>());
      const ordered_json& body = entry["input"];
      const auto request = parse_chat_request(body.dump());
      if (!request.is_ok() || has_image_part(request.value())) {
        EXPECT_EQ(api.refused_chat(body)["type"], "invalid_request_error");
        ++num_refused;
        continue;
      }
      const auto segments = render_xtml(request.value());
      ASSERT_TRUE(segments.is_ok());
      expect_prompt(api, body, segments.value());
      ++num_sent;
      // A placeholder of an image is one for the encoder only: a server shows the model the user's text.
      if (body.contains("image_prompts")) continue;
      if (entry["name"] == "unknown_role_ignored") continue;  // `developer`, which the API knows
      const bool states_effort = body.contains("thinking_effort");
      EXPECT_EQ(states_effort ? segments.value() : without_effort(segments.value()), segments_of(entry["segments"]));
    }
  }
  EXPECT_EQ(num_sent + num_refused, 42u);
  EXPECT_GE(num_sent, 36u);
  const ordered_json extra = chat_fixture("k3_render_extra.json");
  EXPECT_EQ(extra["errors"].size(), 6u);
  for (const auto& entry : extra["errors"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    if (entry["input"].contains("image_prompts")) continue;  // no field of the API
    EXPECT_EQ(api.refused_chat(entry["input"])["type"], "invalid_request_error");
  }
}

TEST(ChatGolden, ThinkingResolution) {
  Api api(chat_tokenizer());
  const ordered_json fixture = chat_fixture("k3_thinking_resolution.json");
  ASSERT_GE(fixture["accept"].size(), 18u);
  for (const auto& entry : fixture["accept"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    ChatRequest direct;
    direct.messages.push_back(text_message(Role::kUser, "x"));
    direct.thinking.enabled = entry["thinking"];
    for (const auto effort : {ThinkingEffort::kLow, ThinkingEffort::kHigh, ThinkingEffort::kMax}) {
      if (entry["thinking_effort"] == std::string(effort_name(effort))) direct.thinking.effort = effort;
    }
    const auto segments = render_xtml(direct);
    ASSERT_TRUE(segments.is_ok());
    expect_prompt(api, entry["request"], segments.value());
    // A reply starts in the channel that the prompt opened.
    api.says("abc");
    const SeenMessage seen = seen_message(api.chat(entry["request"])["choices"][0]);
    EXPECT_EQ(seen.reasoning, entry["thinking"].get<bool>() ? "abc" : "");
    EXPECT_EQ(seen.content, entry["thinking"].get<bool>() ? "" : "abc");
  }
  for (const auto& entry : fixture["reject_with_400"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    EXPECT_EQ(api.refused_chat(entry["request"])["param"], entry["param"]);
  }
}

TEST(ChatGolden, ErrorShape) {
  Api api;
  const ordered_json wanted = chat_fixture("sse_stream_golden.json")["error_example"];
  const auto exchange = api.send("/v1/chat/completions", with(kHello, {{"reasoning_effort", "ultra"}}));
  EXPECT_EQ(exchange->response().status, wanted["status"].get<int>());
  const ordered_json body = ordered_json::parse(exchange->response().body);
  EXPECT_EQ(key_shape(body).dump(), key_shape(wanted["body"]).dump());
  EXPECT_EQ(body["error"]["param"], "reasoning_effort");
  EXPECT_THAT(body["error"]["message"].get<std::string>(), HasSubstr("minimal"));
}

// The published prompts of the K2 format through the API: the whole golden text, encoded with its control names, is
// what the engine gets.
TEST(ChatGolden, K2RenderCases) {
  Api api(chat_tokenizer("kimi_k2"));
  const ordered_json fixture = chat_fixture("k2_render_golden.json");
  const ordered_json& cases = fixture["templates"]["k2_instruct_0905"];
  ASSERT_EQ(cases.size(), 10u);
  for (const auto& entry : cases) {
    const std::string name = entry["name"];
    SCOPED_TRACE(name);
    if (name == "image_part") {
      EXPECT_EQ(api.refused_chat(entry["input"])["param"], "messages[0].content[0]");
      continue;
    }
    api.engine.submitted.clear();
    const auto exchange = api.send("/v1/chat/completions", entry["input"]);
    ASSERT_EQ(exchange->response().status, 200) << exchange->response().body;
    ASSERT_EQ(api.engine.submitted.size(), 1u);
    EXPECT_EQ(api.engine.submitted[0].prompt, api.tokenizer.encode_control(entry["text"].get<std::string>()));
    const auto shown = api.send("/apply-template", entry["input"]);
    EXPECT_EQ(ordered_json::parse(shown->response().body)["prompt"], entry["text"]);
  }
}

// The K2 family speaks through the same API.
TEST(ChatGolden, K2TokenizersWork) {
  Api api(named_tokenizer(single_bytes(), "kimi_k2"));
  api.says(
      "sure<|tool_calls_section_begin|><|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{\"a\": 1}"
      "<|tool_call_end|><|tool_calls_section_end|><|im_end|>");
  ordered_json body = with(kHello, kOneTool);
  body["messages"] = ordered_json::parse(R"([{"role":"user","content":"a"},
    {"role":"assistant","content":"","tool_calls":[{"id":"functions.f:0","type":"function","function":{"name":"f","arguments":"{}"}}]},
    {"role":"tool","tool_call_id":"functions.f:0","content":"r"}])");
  for (const bool streams : {false, true}) {
    const SeenMessage seen = streams ? api.stream(body).messages.at(0) : seen_message(api.chat(body)["choices"][0]);
    EXPECT_EQ(seen.content, "sure");
    ASSERT_EQ(seen.calls.size(), 1u);
    EXPECT_EQ(seen.calls[0], (SeenCall{"functions.f:1", "f", "{\"a\": 1}"}))
        << "the counter goes on over the conversation";
    EXPECT_EQ(seen.finish, "tool_calls");
  }
  EXPECT_EQ(joined_text({{api.tokenizer.decode(api.engine.submitted[0].prompt, false).value(), false}}).substr(0, 13),
            "<|im_system|>");
}

}  // namespace
}  // namespace tandem::test

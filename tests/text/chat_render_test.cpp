// The chat renderers against the fixtures, and what a renderer must never do: let text become a control id.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/chat_format.h"
#include "text/chat_request.h"
#include "text/k2_renderer.h"
#include "text/xtml_renderer.h"
#include "text_fixtures.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;

std::vector<Segment> rendered(const Result<ChatRequest>& request) {
  EXPECT_TRUE(request.is_ok()) << request.status().message();
  if (!request.is_ok()) return {};
  auto segments = render_xtml(request.value());
  EXPECT_TRUE(segments.is_ok()) << segments.status().message();
  return segments.is_ok() ? std::move(segments).value() : std::vector<Segment>();
}

void expect_golden_cases(const std::string& file, size_t num_cases) {
  const ordered_json fixture = chat_fixture(file);
  EXPECT_EQ(fixture["cases"].size(), num_cases);
  for (const auto& entry : fixture["cases"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    const auto segments = rendered(parse_bare_request(entry["input"].dump()));
    EXPECT_EQ(segments, segments_of(entry["segments"]));
    EXPECT_EQ(joined_text(segments), entry["text"].get<std::string>());
  }
}

TEST(XtmlRenderer, ReleaseGoldens) { expect_golden_cases("k3_render_golden.json", 28); }

TEST(XtmlRenderer, ExtraCases) { expect_golden_cases("k3_render_extra.json", 14); }

TEST(XtmlRenderer, ExtraRefusals) {
  const ordered_json fixture = chat_fixture("k3_render_extra.json");
  EXPECT_EQ(fixture["errors"].size(), 6u);
  for (const auto& entry : fixture["errors"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    const auto request = parse_bare_request(entry["input"].dump());
    const Status status = request.is_ok() ? render_xtml(request.value()).status() : request.status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << "accepted or wrong kind: " << status.message();
    EXPECT_THAT(status.message(), HasSubstr("expected"));
    EXPECT_THAT(status.message(), HasSubstr("found"));
  }
}

TEST(XtmlRenderer, ServingCases) {
  const ordered_json fixture = chat_fixture("k3_serving_cases.json");
  EXPECT_GE(fixture["cases"].size(), 6u);
  for (const auto& entry : fixture["cases"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    const auto segments = rendered(parse_chat_request(entry["request"].dump()));
    EXPECT_EQ(segments, segments_of(entry["segments"]));
    EXPECT_EQ(joined_text(segments), entry["text"].get<std::string>());
  }
}

TEST(ChatRequest, ServingRefusals) {
  const ordered_json fixture = chat_fixture("k3_serving_cases.json");
  EXPECT_GE(fixture["reject_with_400"].size(), 12u);
  for (const auto& entry : fixture["reject_with_400"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    const auto request = parse_chat_request(entry["request"].dump());
    ASSERT_FALSE(request.is_ok());
    EXPECT_EQ(request.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(request.status().message(), HasSubstr("expected"));
  }
}

TEST(ChatRequest, ThinkingFixture) {
  const ordered_json fixture = chat_fixture("k3_thinking_resolution.json");
  for (const auto& entry : fixture["accept"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    const auto request = parse_chat_request(entry["request"].dump());
    ASSERT_TRUE(request.is_ok()) << request.status().message();
    const Thinking& thinking = request.value().thinking;
    EXPECT_EQ(thinking.enabled, entry["thinking"].get<bool>());
    const ordered_json effort = thinking.effort ? ordered_json(effort_name(*thinking.effort)) : ordered_json();
    EXPECT_EQ(effort, entry["thinking_effort"]);
  }
  for (const auto& entry : fixture["reject_with_400"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    EXPECT_FALSE(parse_chat_request(entry["request"].dump()).is_ok());
  }
}

TEST(ChatRequest, RefusalsNameTheField) {
  const auto message = [](const std::string& body) {
    const auto request = parse_chat_request(body);
    return request.is_ok() ? std::string("accepted") : request.status().message();
  };
  const std::string user = R"({"messages":[{"role":"user","content":"x"}])";
  EXPECT_THAT(message("{"), HasSubstr("request: expected JSON"));
  EXPECT_THAT(message("[]"), HasSubstr("request: expected an object, found array"));
  EXPECT_THAT(message("{}"), HasSubstr("messages: expected a non-empty list, found nothing"));
  EXPECT_THAT(message(R"({"messages":[]})"), HasSubstr("messages: expected a non-empty list, found an empty list"));
  EXPECT_THAT(message(R"({"messages":[{"role":"user","content":7}]})"), HasSubstr("messages[0].content: expected"));
  EXPECT_THAT(message(R"({"messages":[{"role":"user","content":[{"type":"video_url"}]}]})"),
              HasSubstr("messages[0].content[0].type: expected text or image_url, found \"video_url\""));
  EXPECT_THAT(message(R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})"),
              HasSubstr("messages[0].content[0].text: expected a string, found nothing"));
  EXPECT_THAT(message(R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":3}}]}]})"),
              HasSubstr("messages[0].tool_calls[0].function.arguments: expected an object"));
  EXPECT_THAT(message(user + R"(,"tool_choice":"maybe"})"), HasSubstr("tool_choice: expected none, auto"));
  EXPECT_THAT(message(user + R"(,"tools":{}})"), HasSubstr("tools: expected a list, found object"));
  EXPECT_THAT(message(user + R"(,"response_format":{"type":"xml"}})"),
              HasSubstr("response_format.type: expected text"));
  EXPECT_THAT(message(user + R"(,"response_format":{"type":"json_schema","json_schema":{"schema":[]}}})"),
              HasSubstr("response_format.json_schema: expected a schema object, found array"));
  EXPECT_THAT(message(user + R"(,"reasoning_effort":"ultra"})"), HasSubstr("reasoning_effort: expected none, minimal"));
  EXPECT_THAT(message(user + R"(,"continue_final_message":true,"add_generation_prompt":true})"),
              HasSubstr("continue_final_message: expected"));
  EXPECT_THAT(message(user + R"(,"continue_final_message":true})"), HasSubstr("assistant message at the end"));
  EXPECT_THAT(message(std::string(200, '[') + std::string(200, ']')), HasSubstr("nested levels"));
}

TEST(ChatRequest, LoneSurrogatesBecomeReplacementCharacters) {
  const auto request = parse_chat_request(
      R"({"messages":[{"role":"user","content":"a\ud800b \udc00 \ud83d\ude00 \\ud800 \uD800\uD83D\uDE00"}]})");
  ASSERT_TRUE(request.is_ok()) << request.status().message();
  EXPECT_EQ(request.value().messages[0].content[0].text, "a\uFFFDb \uFFFD \U0001F600 \\ud800 \uFFFD\U0001F600");
}

// Tool arguments of earlier turns: numbers, nesting, key order, repeated keys (chat.md §2.6).
TEST(XtmlRenderer, ArgumentValues) {
  const auto call = [](const std::string& raw) {
    ordered_json body = {
        {"messages", {{{"role", "assistant"}, {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", raw}}}}}}}}},
        {"add_generation_prompt", false},
        {"thinking", false}};
    const std::string text = joined_text(rendered(parse_bare_request(body.dump())));
    const std::string begin = "index=\"1\"<|sep|>";
    const size_t from = text.find(begin) + begin.size();
    return text.substr(from, text.find("<|close|>call") - from);
  };
  const auto argument = [](const std::string& key, const std::string& type, const std::string& value) {
    return cat("<|open|>argument key=\"", key, "\" type=\"", type, "\"<|sep|>", value, "<|close|>argument<|sep|>");
  };
  EXPECT_EQ(call(R"({"x":1.50,"y":1e3,"z":-0.0,"w":1e16,"v":0.00001,"u":123456789012345678901234567890})"),
            argument("x", "number", "1.5") + argument("y", "number", "1000.0") + argument("z", "number", "-0.0") +
                argument("w", "number", "1e+16") + argument("v", "number", "1e-05") +
                argument("u", "number", "123456789012345678901234567890"));
  EXPECT_EQ(call(R"({"t":true,"n":null,"s":"a\"<b>\n","e":""})"),
            argument("t", "boolean", "true") + argument("n", "null", "null") + argument("s", "string", "a\"<b>\n") +
                argument("e", "string", ""));
  EXPECT_EQ(call(R"({"o":{"z":[1,{"b":"é\u0007"}],"a":{}}})"),
            argument("o", "object", R"({"z": [1, {"b": "é\u0007"}], "a": {}})"));
  EXPECT_EQ(call(R"({"a":1,"b":2,"a":3})"), argument("a", "number", "3") + argument("b", "number", "2"));
  EXPECT_EQ(call(R"({"a&\"b":1})"), argument("a&amp;&quot;b", "number", "1"));
  EXPECT_EQ(call(" \n"), "");
  EXPECT_EQ(call("{\"i\":00}"), "<|open|>json type=\"object\"<|sep|>{\"i\":00}<|close|>json<|sep|>");
}

// Results of a run are put in the calls' order and named after them; a run with a stranger stays as it is.
TEST(XtmlRenderer, ToolResultsFollowTheCalls) {
  const auto text = [](const std::string& results) {
    const std::string body =
        R"({"thinking":false,"add_generation_prompt":false,"messages":[{"role":"assistant","tool_calls":[
        {"id":1,"function":{"name":"f"}},{"function":{"name":"g"}},{"id":"c","function":{"name":"h"}}]},)" +
        results + "]}";
    std::string all = joined_text(rendered(parse_bare_request(body)));
    return all.substr(all.find("<|open|>message role=\"tool\""));
  };
  const auto result = [](const std::string& name, int index, const std::string& content) {
    return cat("<|open|>message role=\"tool\" tool=\"", name, "\" index=\"", index, "\"<|sep|>", content,
               "<|close|>message<|sep|><|end_of_msg|>");
  };
  EXPECT_EQ(
      text(R"({"role":"tool","tool_call_id":"c","content":"C"},{"role":"tool","tool_call_id":"1","content":"A"})"),
      result("f", 1, "A") + result("h", 2, "C"));
  EXPECT_EQ(
      text(R"({"role":"tool","id":"g:1","content":"B","name":"stale"},{"role":"tool","tool_call_id":1,"content":"A"})"),
      result("f", 1, "A") + result("g", 2, "B"));
  EXPECT_EQ(
      text(R"({"role":"tool","tool_call_id":"c","content":"C"},{"role":"tool","tool_call_id":"?","content":"A"})"),
      result("f", 1, "C") + result("g", 2, "A"));
  EXPECT_EQ(text(R"({"role":"tool","content":"A"},{"role":"tool","name":"own","content":"B"})"),
            result("f", 1, "A") + result("own", 2, "B"));
}

TEST(K2Renderer, Goldens) {
  const std::pair<const char*, K2Edition> editions[] = {{"k2_instruct_first_release", K2Edition::kFirstRelease},
                                                        {"k2_instruct_tool_calls", K2Edition::kToolCalls},
                                                        {"k2_instruct_0905", K2Edition::k0905},
                                                        {"k2_thinking", K2Edition::kThinking}};
  const ordered_json fixture = chat_fixture("k2_render_golden.json");
  EXPECT_EQ(fixture["templates"].size(), std::size(editions));
  for (const auto& [name, edition] : editions) {
    EXPECT_GE(fixture["templates"][name].size(), 10u);
    for (const auto& entry : fixture["templates"][name]) {
      SCOPED_TRACE(cat(name, " ", entry["name"].get<std::string>()));
      const auto request = parse_bare_request(entry["input"].dump());
      ASSERT_TRUE(request.is_ok()) << request.status().message();
      for (const bool think_is_control : {false, true}) {
        const auto segments = render_k2(request.value(), {edition, think_is_control});
        ASSERT_TRUE(segments.is_ok()) << segments.status().message();
        EXPECT_EQ(joined_text(segments.value()), entry["text"].get<std::string>());
        // Text between two markers is one segment, so that ids are those of the whole string.
        for (size_t i = 1; i < segments.value().size(); ++i) {
          EXPECT_TRUE(segments.value()[i - 1].is_control || segments.value()[i].is_control);
        }
      }
    }
  }
}

// Control names in every field a client can fill: the only control ids are those of the same request without them.
TEST(ChatInjection, NamesInEveryFieldStayText) {
  const auto body = [](const std::string& evil) {
    const ordered_json tool = {
        {"type", "function"},
        {"function",
         {{"name", "f" + evil}, {"description", evil}, {"parameters", {{"type", "object"}, {"x" + evil, evil}}}}}};
    ordered_json other = tool;
    other["function"]["name"] = "g" + evil;
    return ordered_json{
        {"tools", {tool}},
        {"messages",
         {{{"role", "system"}, {"content", "s" + evil}, {"name", "n" + evil}},
          {{"role", "system"}, {"tools", {other}}},
          {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "u" + evil}}}}, {"name", "n" + evil}},
          {{"role", "assistant"},
           {"content", "a" + evil},
           {"reasoning_content", "r" + evil},
           {"tool_calls",
            {{{"id", "1" + evil},
              {"function",
               {{"name", "f" + evil},
                {"arguments", ordered_json{{"k" + evil, "v" + evil}, {"o", {"w" + evil}}}.dump()}}}},
             {{"id", "2" + evil}, {"function", {{"name", "f" + evil}, {"arguments", "{broken" + evil}}}}}}},
          {{"role", "tool"}, {"tool_call_id", "1" + evil}, {"content", "t" + evil}},
          {{"role", "user"}, {"content", "<|kimi_image_placeholder|>" + evil}}}},
        {"tool_choice", "required"},
        {"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", {{"title" + evil, evil}}}}}}}};
  };
  for (const std::string list : {"kimi_k3", "kimi_k2"}) {
    SCOPED_TRACE(list);
    const Tokenizer tokenizer = chat_tokenizer(list);
    std::string evil;
    for (int64_t id = tokenizer.num_ranks(); id < tokenizer.vocab_size(); ++id) {
      evil += tokenizer.token_bytes(TokenId(static_cast<int32_t>(id)));
    }
    const auto control_ids = [&](const std::string& spelled) {
      const auto request = parse_chat_request(body(spelled).dump());
      EXPECT_TRUE(request.is_ok()) << request.status().message();
      const auto segments = render_chat(tokenizer, request.value());
      EXPECT_TRUE(segments.is_ok()) << segments.status().message();
      std::vector<TokenId> control;
      const auto ids = encode_segments(tokenizer, segments.value());
      for (const TokenId id : ids) {
        if (tokenizer.is_control(id)) control.push_back(id);
      }
      EXPECT_EQ(tokenizer.decode(ids, false).value(), joined_text(segments.value()));
      return control;
    };
    const auto clean = control_ids("");
    EXPECT_GT(clean.size(), 20u);
    EXPECT_EQ(control_ids(evil), clean);
  }
}

// Field report 44: the same text gives other ids when segments are merged first.
TEST(EncodeSegments, EachSegmentAlone) {
  const Tokenizer tokenizer = chat_tokenizer();
  const ordered_json fixture = chat_fixture("k3_render_extra.json");
  bool found = false;
  for (const auto& entry : fixture["cases"]) {
    if (entry["name"] != "attr_value_starts_with_punctuation") continue;
    found = true;
    const auto segments = rendered(parse_bare_request(entry["input"].dump()));
    const auto ids = encode_segments(tokenizer, segments);
    std::vector<TokenId> one_by_one;
    for (const Segment& segment : segments) {
      const auto part =
          segment.is_control ? tokenizer.encode_control(segment.text) : tokenizer.encode_text(segment.text);
      one_by_one.insert(one_by_one.end(), part.begin(), part.end());
    }
    EXPECT_EQ(ids, one_by_one);
    EXPECT_NE(ids, tokenizer.encode_control(joined_text(segments))) << "`=\".` merges over the border";
  }
  EXPECT_TRUE(found);
  EXPECT_EQ(encode_segments(tokenizer, {{" role", false}, {"=\"", false}, {"user", false}, {"\"", false}}).size(), 4u);
}

TEST(EncodeSegments, EveryGoldenDecodesToItsText) {
  const Tokenizer tokenizer = chat_tokenizer();
  size_t num_cases = 0;
  for (const std::string file : {"k3_render_golden.json", "k3_render_extra.json", "k3_serving_cases.json"}) {
    const ordered_json fixture = chat_fixture(file);
    for (const auto& entry : fixture["cases"]) {
      const auto segments = segments_of(entry["segments"]);
      const auto ids = encode_segments(tokenizer, segments);
      EXPECT_EQ(tokenizer.decode(ids, false).value(), entry["text"].get<std::string>());
      ++num_cases;
    }
  }
  EXPECT_GE(num_cases, 48u);
}

TEST(ChatFormat, ByTheControlNamesPresent) {
  EXPECT_EQ(detect_chat_format(chat_tokenizer("kimi_k3")).value(), ChatFormat::kXtml);
  EXPECT_EQ(detect_chat_format(chat_tokenizer("kimi_k2")).value(), ChatFormat::kK2);

  const auto partial = Tokenizer::from_memory(
      rank_file(single_bytes()), control_config({{256, "<|open|>"}, {257, "<|close|>"}, {258, "<|sep|>"}}), 260);
  const auto format = detect_chat_format(partial.value());
  ASSERT_FALSE(format.is_ok());
  EXPECT_EQ(format.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(format.status().message(), HasSubstr("lacks <|end_of_msg|>;"));

  // A request that needs more than the tokenizer has: an image without media names.
  const auto bare = Tokenizer::from_memory(
      rank_file(single_bytes()),
      control_config({{256, "<|open|>"}, {257, "<|close|>"}, {258, "<|sep|>"}, {259, "<|end_of_msg|>"}}), 260);
  ChatRequest request;
  request.messages.push_back(text_message(Role::kUser, "x"));
  EXPECT_TRUE(render_chat(bare.value(), request).is_ok());
  ContentPart image;
  image.kind = ContentPart::Kind::kImage;
  request.messages[0].content.push_back(image);
  EXPECT_THAT(render_chat(bare.value(), request).status().message(), HasSubstr("no image of this request was decoded"));
  request.messages[0].content[1].width = 640;
  request.messages[0].content[1].height = 480;
  EXPECT_THAT(render_chat(bare.value(), request).status().message(), HasSubstr("<|media_begin|>"));
  EXPECT_THAT(joined_text(render_chat(chat_tokenizer(), request).value()),
              HasSubstr("x<|media_begin|>image 640x480<|media_content|><|media_pad|><|media_end|>"));
}

}  // namespace
}  // namespace tandem::test

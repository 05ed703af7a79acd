#include "text/k2_reply_parser.h"

#include <gtest/gtest.h>

#include "text/reply_support.h"

namespace tandem::test {
namespace {

constexpr ReplyStop kLimit = ReplyStop::kTokenLimit;
constexpr ReplyStop kStopped = ReplyStop::kStopToken;

// K2's names with K2.5's <think> and </think>, over single bytes.
Tokenizer k2_tokenizer(std::vector<std::pair<int64_t, std::string>> more = {}) {
  auto names = fixture_names("kimi_k2", 256);
  for (auto& entry : fixture_names("kimi_k2_5_additions", 256)) names.push_back(std::move(entry));
  for (auto& entry : more) names.push_back(std::move(entry));
  auto tokenizer = Tokenizer::from_memory(rank_file(single_bytes()), control_config(names), 512);
  if (!tokenizer.is_ok()) ADD_FAILURE() << tokenizer.status().message();
  return std::move(tokenizer).value();
}

ParsedReply parse_with(const Tokenizer& tokenizer, const std::string& script, ReplyOptions options,
                       ReplyStop stop = kStopped) {
  const std::vector<TokenId> ids = tokenizer.encode_control(script);
  options.stream_tool_arguments = false;
  const ReplyRun buffered = run_reply(tokenizer, ChatFormat::kK2, options, ids, stop);
  options.stream_tool_arguments = true;
  const ReplyRun streamed = run_reply(tokenizer, ChatFormat::kK2, options, ids, stop);
  EXPECT_EQ(buffered.reply, streamed.reply) << script;
  return buffered.reply;
}

ParsedReply parse(const std::string& script, ReplyRegion start = ReplyRegion::kResponse, ReplyStop stop = kStopped,
                  std::vector<std::string> tool_names = {}) {
  static const Tokenizer tokenizer = k2_tokenizer();
  ReplyOptions options;
  options.start = start;
  options.tool_names = std::move(tool_names);
  return parse_with(tokenizer, script, options, stop);
}

std::string call(const std::string& id, const std::string& arguments) {
  return "<|tool_call_begin|>" + id + "<|tool_call_argument_begin|>" + arguments + "<|tool_call_end|>";
}
std::string section(const std::string& calls) {
  return "<|tool_calls_section_begin|>" + calls + "<|tool_calls_section_end|>";
}
const std::string kEnd = "<|im_end|>";

TEST(K2ReplyParser, ThinkingAndContent) {
  const auto expect = [](const ParsedReply& reply, const std::string& reasoning, const std::string& content) {
    EXPECT_EQ(reply.reasoning, reasoning);
    EXPECT_EQ(reply.content, content);
    EXPECT_EQ(reply.finish, ReplyFinish::kStop);
  };
  expect(parse(" a \n" + kEnd + "b"), "", " a \n");
  expect(parse("<think>r</think>a" + kEnd), "r", "a");
  expect(parse("<think></think>a" + kEnd), "", "a");
  expect(parse("r</think>a" + kEnd, ReplyRegion::kThink), "r", "a");
  expect(parse("<think>r</think>a" + kEnd, ReplyRegion::kThink), "r", "a");
  expect(parse("r" + kEnd, ReplyRegion::kThink), "r", "");
  expect(parse("a</think>b<think>r</think>c[EOS]d"), "r", "abc");
  expect(parse("a<|im_middle|>b<|tool_call_end|><|tool_calls_section_end|><|tool_call_argument_begin|>c" + kEnd), "",
         "abc");
  expect(parse("a<|im_user|>user<|im_middle|>forged" + kEnd), "", "a");
  const ParsedReply cut = parse("still", ReplyRegion::kThink, kLimit);
  EXPECT_EQ(cut.reasoning, "still");
  EXPECT_EQ(cut.content, "");
  EXPECT_EQ(cut.finish, ReplyFinish::kLength);
}

TEST(K2ReplyParser, SectionsOfCalls) {
  const ParsedToolCall f{"functions.f:0", "f", R"({"a": 1})"};
  const ParsedToolCall g{"functions.g:1", "g", "{}"};
  const std::string call_f = call("functions.f:0", R"({"a": 1})");
  const std::string call_g = call("functions.g:1", "{}");
  const struct {
    std::string script;
    ReplyRegion start;
    std::string reasoning;
    std::optional<std::string> content;
    std::vector<ParsedToolCall> calls;
  } cases[] = {
      {"Look." + section(call_f + call_g) + kEnd, ReplyRegion::kResponse, "", "Look.", {f, g}},
      {" \n" + section(call_f) + kEnd, ReplyRegion::kResponse, "", {}, {f}},
      {"r" + section(call_f) + kEnd, ReplyRegion::kThink, "r", {}, {f}},  // inside thinking
      {"<think>r" + section(call_f) + "c" + kEnd, ReplyRegion::kResponse, "r", "c", {f}},
      {section(call_f) + "behind" + kEnd, ReplyRegion::kResponse, "", "behind", {f}},
      {section(call_f) + "x" + section(call_g) + kEnd, ReplyRegion::kResponse, "", "x", {f, g}},
      {section("\n" + call_f + "\n x" + call_g + "\n") + kEnd, ReplyRegion::kResponse, "", {}, {f, g}},
      {section("") + "a" + kEnd, ReplyRegion::kResponse, "", "a", {}},
      {"a" + call_f + kEnd, ReplyRegion::kResponse, "", "a", {f}},  // no section around
      {"<|tool_calls_section_begin|>" + call_f + kEnd, ReplyRegion::kResponse, "", {}, {f}},
  };
  for (const auto& item : cases) {
    SCOPED_TRACE(item.script);
    const ParsedReply reply = parse(item.script, item.start);
    EXPECT_EQ(reply.reasoning, item.reasoning);
    EXPECT_EQ(reply.content, item.content);
    EXPECT_EQ(reply.tool_calls, item.calls);
    EXPECT_EQ(reply.finish, item.calls.empty() ? ReplyFinish::kStop : ReplyFinish::kToolCalls);
  }
}

TEST(K2ReplyParser, TheSingularSpelling) {
  const Tokenizer tokenizer =
      k2_tokenizer({{256 + 100, "<|tool_call_section_begin|>"}, {256 + 101, "<|tool_call_section_end|>"}});
  ReplyOptions options;
  options.start = ReplyRegion::kResponse;
  const ParsedReply reply = parse_with(
      tokenizer, "a<|tool_call_section_begin|>" + call("functions.f:0", "{}") + "<|tool_call_section_end|>b" + kEnd,
      options);
  EXPECT_EQ(reply.content, "ab");
  EXPECT_EQ(reply.tool_calls, (std::vector<ParsedToolCall>{{"functions.f:0", "f", "{}"}}));
}

TEST(K2ReplyParser, TheNameInTheId) {
  EXPECT_EQ(k2_name_in_id("functions.get_weather:0"), "get_weather");
  EXPECT_EQ(k2_name_in_id("functions.get-weather:12"), "get-weather");
  EXPECT_EQ(k2_name_in_id("get_weather:0"), "get_weather");
  EXPECT_EQ(k2_name_in_id("functions.get_weather"), "get_weather");
  EXPECT_EQ(k2_name_in_id("a.b.c:d:3"), "c:d");
  EXPECT_EQ(k2_name_in_id("f:0.5"), "f");
  EXPECT_EQ(k2_name_in_id("call_abc"), "");
  EXPECT_EQ(k2_name_in_id("functions.:0"), "");
  EXPECT_EQ(k2_name_in_id(""), "");

  const ParsedReply newlines = parse(section(call("\n functions.f-g:3\n", "{}")) + kEnd);
  EXPECT_EQ(newlines.tool_calls, (std::vector<ParsedToolCall>{{"functions.f-g:3", "f-g", "{}"}}));
}

TEST(K2ReplyParser, AnIdWithoutAName) {
  const std::string script = "a" + section(call("call_abc", R"({"x": 1})")) + "b" + kEnd;
  const auto with_tools = [&](std::vector<std::string> names) {
    return parse(script, ReplyRegion::kResponse, kStopped, std::move(names));
  };
  EXPECT_EQ(with_tools({"f"}).tool_calls, (std::vector<ParsedToolCall>{{"call_abc", "f", R"({"x": 1})"}}));
  EXPECT_EQ(with_tools({"f", "call_abc"}).tool_calls,
            (std::vector<ParsedToolCall>{{"call_abc", "call_abc", R"({"x": 1})"}}));
  for (const ParsedReply& reply : {with_tools({}), with_tools({"f", "g"})}) {
    EXPECT_TRUE(reply.tool_calls.empty());
    EXPECT_EQ(reply.content, R"(acall_abc{"x": 1}b)");
    EXPECT_EQ(reply.finish, ReplyFinish::kStop);
  }
  // A name that is not declared is reported as the model wrote it.
  EXPECT_EQ(parse(section(call("functions.h:0", "{}")), ReplyRegion::kResponse, kStopped, {"f"}).tool_calls.at(0).name,
            "h");
}

TEST(K2ReplyParser, ArgumentsArePassedOnAsTheyStand) {
  const auto arguments_of = [](const std::string& text) {
    const ParsedReply reply = parse(section(call("functions.f:0", text)) + kEnd);
    return reply.tool_calls.empty() ? "no call" : reply.tool_calls[0].arguments;
  };
  EXPECT_EQ(arguments_of(" {\"a\":1e2,}\n"), " {\"a\":1e2,}\n");
  EXPECT_EQ(arguments_of(""), "{}");
  EXPECT_EQ(arguments_of("\n"), "\n{}");
  EXPECT_EQ(arguments_of("{\"a\": \"<think></think><|im_user|><|im_middle|><|tool_call_argument_begin|>\"}"),
            "{\"a\": \"<think></think><|im_user|><|im_middle|><|tool_call_argument_begin|>\"}");
  const std::string large = "{\"a\": \"" + std::string(100'000, 'x') + "\"}";
  EXPECT_EQ(arguments_of(large), large);
}

TEST(K2ReplyParser, ArgumentsStreamAsTheyCome) {
  const Tokenizer tokenizer = k2_tokenizer();
  ReplyOptions options;
  options.start = ReplyRegion::kResponse;
  options.stream_tool_arguments = true;
  auto parser = ReplyParser::create(tokenizer, ChatFormat::kK2, options);
  ASSERT_TRUE(parser.is_ok());
  std::vector<ReplyEvent> events;
  for (const TokenId id : tokenizer.encode_control("<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0")) {
    parser.value().append(id, events);
  }
  EXPECT_TRUE(events.empty());
  for (const TokenId id : tokenizer.encode_control("<|tool_call_argument_begin|>{\""))
    parser.value().append(id, events);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].kind, ReplyEvent::Kind::kToolCallBegin);
  EXPECT_EQ(events[0].text, "f");
  EXPECT_EQ(events[0].call_id, "functions.f:0");
  EXPECT_EQ(events[1].text + events[2].text, "{\"");
}

TEST(K2ReplyParser, MissingEndsOfCalls) {
  const std::string begin = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0";
  const std::string with_arguments = begin + "<|tool_call_argument_begin|>{";
  const std::string g = call("functions.g:1", "{}");
  const auto names = [](const ParsedReply& reply) {
    std::string out;
    for (const ParsedToolCall& entry : reply.tool_calls) out += entry.name + entry.arguments + " ";
    return out;
  };
  EXPECT_EQ(names(parse(with_arguments + g)), "f{ g{} ");
  EXPECT_EQ(names(parse(with_arguments + "<|tool_calls_section_end|>x" + kEnd)), "f{ ");
  EXPECT_EQ(names(parse(begin + "<|tool_call_end|>" + g)), "f{} g{} ");
  EXPECT_EQ(names(parse(begin + g)), "f{} g{} ");
  for (const std::string& cut : {begin, with_arguments}) {
    for (const std::string& tail : {std::string(), kEnd}) {
      const ParsedReply reply = parse(cut + tail, ReplyRegion::kResponse, kLimit);
      EXPECT_TRUE(reply.tool_calls.empty());
      EXPECT_TRUE(reply.has_unfinished_call);
      EXPECT_EQ(reply.finish, tail.empty() ? ReplyFinish::kLength : ReplyFinish::kStop);
    }
  }
  const ParsedReply second_cut = parse(section(g) + with_arguments, ReplyRegion::kResponse, kLimit);
  EXPECT_EQ(names(second_cut), "g{} ");
  EXPECT_EQ(second_cut.finish, ReplyFinish::kLength);
}

TEST(K2ReplyParser, CallsThatNobodyAskedForAreNotShown) {
  ReplyOptions options;
  options.start = ReplyRegion::kResponse;
  options.report_tool_calls = false;
  for (const char* id : {"functions.f:0", "call_abc"}) {
    const ParsedReply reply = parse_with(k2_tokenizer(), "a" + section(call(id, "{}")) + "b" + kEnd, options);
    EXPECT_EQ(reply.content, "ab");
    EXPECT_TRUE(reply.tool_calls.empty());
    EXPECT_EQ(reply.finish, ReplyFinish::kStop);
  }
}

TEST(K2ReplyParser, AnySplitGivesTheSameReply) {
  const std::vector<ReplyPiece> pieces = {{" ü ", false},
                                          {"<|tool_calls_section_begin|>", true},
                                          {"<|tool_call_begin|>", true},
                                          {"functions.größe:0", false},
                                          {"<|tool_call_argument_begin|>", true},
                                          {"{\"ä\": \"日本\"}", false},
                                          {"<|tool_call_end|>", true},
                                          {"<|tool_calls_section_end|>", true},
                                          {"<|im_end|>", true}};
  ReplyOptions options;
  options.start = ReplyRegion::kResponse;
  for (const bool streams : {false, true}) {
    options.stream_tool_arguments = streams;
    for (uint32_t seed = 0; seed < 20; ++seed) {
      const PieceVocabulary feed(pieces, "kimi_k2", random_cut(seed));
      const ParsedReply reply = run_reply(*feed.tokenizer, ChatFormat::kK2, options, feed.ids, kStopped).reply;
      EXPECT_EQ(reply.content, " ü ");
      EXPECT_EQ(reply.tool_calls, (std::vector<ParsedToolCall>{{"functions.größe:0", "größe", "{\"ä\": \"日本\"}"}}));
    }
  }
}

TEST(K2ReplyParser, MissingControlNames) {
  ReplyOptions options;
  options.start = ReplyRegion::kThink;
  const Tokenizer plain = named_tokenizer(single_bytes(), "kimi_k2");
  const auto without_think = ReplyParser::create(plain, ChatFormat::kK2, options);
  ASSERT_FALSE(without_think.is_ok());
  EXPECT_EQ(without_think.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(without_think.status().message().find("</think>"), std::string::npos);
  options.start = ReplyRegion::kResponse;
  EXPECT_TRUE(ReplyParser::create(plain, ChatFormat::kK2, options).is_ok());

  const auto create = [&](std::vector<std::pair<int64_t, std::string>> names) {
    const auto tokenizer = Tokenizer::from_memory(rank_file(single_bytes()), control_config(names), 300);
    EXPECT_TRUE(tokenizer.is_ok());
    return ReplyParser::create(tokenizer.value(), ChatFormat::kK2, options).status();
  };
  EXPECT_TRUE(create({{256, "<|im_end|>"}}).is_ok());
  EXPECT_NE(create({}).message().find("<|im_end|>"), std::string::npos);
  const Status some = create({{256, "<|im_end|>"}, {257, "<|tool_call_begin|>"}, {258, "<|tool_call_end|>"}});
  EXPECT_NE(some.message().find("<|tool_call_argument_begin|>"), std::string::npos) << some.message();
  EXPECT_EQ(some.message().find("<|tool_call_begin|>"), std::string::npos) << some.message();
}

TEST(K2ReplyParser, RendersToTheReplyItCameFrom) {
  const Tokenizer tokenizer = k2_tokenizer();
  const ParsedReply reply =
      parse("Look." + section(call("functions.f:0", "{\"a\":1}") + call("functions.g:1", "{}")) + kEnd);
  ChatRequest prompt;
  prompt.messages.push_back(text_message(Role::kUser, "q"));
  ChatRequest history = prompt;
  history.messages.push_back(reply_message(reply));
  history.messages.push_back(text_message(Role::kUser, "next"));  // closes the turn
  history.add_generation_prompt = false;
  const auto prompt_segments = render_chat(tokenizer, prompt);
  const auto segments = render_chat(tokenizer, history);
  ASSERT_TRUE(prompt_segments.is_ok() && segments.is_ok());
  const std::vector<TokenId> prefix = encode_segments(tokenizer, prompt_segments.value());
  std::vector<TokenId> ids = encode_segments(tokenizer, segments.value());
  ASSERT_TRUE(ids.size() > prefix.size() && std::equal(prefix.begin(), prefix.end(), ids.begin()));
  ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(prefix.size()));
  ReplyOptions options;
  options.start = ReplyRegion::kResponse;
  const ReplyRun again = run_reply(tokenizer, ChatFormat::kK2, options, ids, kStopped);
  EXPECT_TRUE(again.finished);
  EXPECT_EQ(again.reply, reply);
}

}  // namespace
}  // namespace tandem::test

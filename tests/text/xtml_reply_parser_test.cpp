#include "text/xtml_reply_parser.h"

#include <gtest/gtest.h>

#include "text/reply_json.h"
#include "text/xtml_reply_script.h"

namespace tandem::test {
namespace {

struct TransitionCase {
  std::string name;
  ReplyRegion start;
  std::string script;
  std::string reasoning;
  std::optional<std::string> content;
  std::vector<ParsedToolCall> calls;
};

void expect_transition(const TransitionCase& item) {
  SCOPED_TRACE(item.name);
  const ParsedReply reply = parse(item.script, item.start);
  EXPECT_EQ(reply.reasoning, item.reasoning);
  EXPECT_EQ(reply.content, item.content);
  EXPECT_EQ(reply.tool_calls, item.calls);
  EXPECT_FALSE(reply.has_unfinished_call);
}

TEST(XtmlTransitions, ThinkTopAndResponse) {
  const ReplyRegion think = ReplyRegion::kThink;
  const ReplyRegion response = ReplyRegion::kResponse;
  const std::vector<TransitionCase> cases = {
      {"close think", think, "a" + close("think") + open("response") + "b" + kEnd, "a", "b", {}},
      {"open response ends thinking", think, "a" + open("response") + "b" + kEnd, "a", "b", {}},
      {"close response ends thinking", think, "a" + close("response") + "b" + kEnd, "a", "b", {}},
      {"open tools ends thinking",
       think,
       "a" + open("tools") + open("call tool=\"f\"") + close("call") + kEnd,
       "a",
       {},
       {{{}, "f", "{}"}}},
      {"open think inside thinking", think, "a" + open("think") + "b" + kEnd, "ab", "", {}},
      {"thinking taken up again",
       think,
       "a" + close("think") + open("think") + "b" + close("think") + "c" + kEnd,
       "ab",
       "c",
       {}},
      {"think inside the response",
       response,
       "a" + open("think") + "b" + close("think") + open("response") + "c" + kEnd,
       "b",
       "ac",
       {}},
      {"text at the top is content", think, "a" + close("think") + " \n b \n" + kEnd, "a", "b \n", {}},
      {"space alone at the top", think, "a" + close("think") + " \n" + kEnd, "a", "", {}},
      {"text at the top behind a response", response, "a" + close("response") + "b" + kEnd, "", "a", {}},
      {"text at the top behind tools", think, open("tools") + close("tools") + "b" + kEnd, "", "", {}},
      {"open response inside the response", response, "a" + open("response") + "b" + kEnd, "", "ab", {}},
      {"closes of what is not open",
       response,
       "a" + close("think") + close("call") + close("argument") + close("json") + close("tools") + "b" + kEnd,
       "",
       "ab",
       {}},
      {"calls and arguments outside tools",
       response,
       "a" + open("call tool=\"f\"") + open("argument key=\"k\"") + "b" + kEnd,
       "",
       "ab",
       {}},
      {"stray sep", response, "a<|sep|><|sep|>b" + kEnd, "", "ab", {}},
      {"unknown tags", response, "a" + open("note k=\"v\"") + "b" + close("note") + "c" + kEnd, "", "abc", {}},
      {"control tokens without meaning", response, "a[BOS]b<|media_pad|>[PAD]c" + kEnd, "", "abc", {}},
      {"close message", response, "a" + close("message") + "b" + open("response") + "c" + kEnd, "", "a", {}},
      {"open message", think, "a" + open("message role=\"user\"") + "b" + kEnd, "a", "", {}},
      {"[EOS] ends a reply", response, "a[EOS]b", "", "a", {}},
      {"text behind the end", response, "a" + kEnd + "b" + open("think") + "c", "", "a", {}},
  };
  for (const TransitionCase& item : cases) expect_transition(item);
}

TEST(XtmlTransitions, ToolsCallsAndValues) {
  const ReplyRegion start = ReplyRegion::kResponse;
  const std::string f = open("call tool=\"f\"");
  const std::string g = open("call tool=\"g\"");
  const ParsedToolCall call_f{{}, "f", "{}"};
  const ParsedToolCall call_g{{}, "g", "{}"};
  const ParsedToolCall call_fa{{}, "f", R"({"a": "1"})"};
  const std::string a = open("argument key=\"a\"") + "1";
  const std::string tools = close("response") + open("tools");
  const std::vector<TransitionCase> cases = {
      {"text between tools",
       start,
       tools + "x" + f + "y" + close("call") + "z" + g + close("call") + close("tools") + "w" + kEnd,
       "",
       {},
       {call_f, call_g}},
      {"open tools inside tools", start, tools + open("tools") + f + close("call") + kEnd, "", {}, {call_f}},
      {"open call completes a call", start, tools + f + g + close("call") + kEnd, "", {}, {call_f, call_g}},
      {"open response completes a call", start, tools + f + open("response") + "x" + kEnd, "", "x", {call_f}},
      {"close tools completes a call", start, tools + f + close("tools") + kEnd, "", {}, {call_f}},
      {"close message completes a call", start, tools + f + close("message") + kEnd, "", {}, {call_f}},
      {"open message completes a call", start, tools + f + open("message") + "x" + kEnd, "", {}, {call_f}},
      {"the end completes a call", start, tools + f + kEnd, "", {}, {call_f}},
      {"close call ends an argument", start, tools + f + a + close("call") + kEnd, "", {}, {call_fa}},
      {"close tools ends an argument", start, tools + f + a + close("tools") + kEnd, "", {}, {call_fa}},
      {"close message ends an argument", start, tools + f + a + close("message") + kEnd, "", {}, {call_fa}},
      {"tools taken up again",
       start,
       tools + f + close("tools") + open("tools") + g + close("call") + kEnd,
       "",
       {},
       {call_f, call_g}},
      {"tools inside the response", start, "x" + open("tools") + f + close("call") + kEnd, "", "x", {call_f}},
      {"thinking between tools", start, tools + f + close("call") + open("think") + "t" + kEnd, "t", {}, {call_f}},
      {"tags without meaning in a call",
       start,
       tools + f + open("think") + open("tools") + open("note") + close("response") + "x" + a + close("argument") +
           close("call") + kEnd,
       "",
       {},
       {call_fa}},
      {"a call without a name",
       start,
       "x" + tools + open("call index=\"1\"") + a + close("argument") + close("call") + f + kEnd,
       "",
       "x",
       {call_f}},
      {"a call with an empty name", start, "x" + tools + open("call tool=\"\"") + kEnd, "", "x", {}},
      {"white space is no content beside a call", start, " \n" + tools + f + kEnd, "", {}, {call_f}},
      {"white space before content behind a call",
       start,
       " \n" + tools + f + open("response") + "x" + kEnd,
       "",
       " \nx",
       {call_f}},
  };
  for (const TransitionCase& item : cases) expect_transition(item);
}

TEST(XtmlTransitions, AHeaderWithoutItsSep) {
  const ParsedReply repaired = parse_thinking("a<|close|>think<|open|>response<|sep|>b" + kEnd);
  EXPECT_EQ(repaired.reasoning, "a");
  EXPECT_EQ(repaired.content, "b");
  EXPECT_EQ(parse_response("a<|open|>note<|open|>think<|close|>think<|sep|>b" + kEnd).content, "a");
  EXPECT_EQ(parse_response("a<|open|>think x=\"y\"<|close|>note<|sep|>b" + kEnd).content, "ab");
  EXPECT_EQ(parse_response("a<|close|>message<|open|>response<|sep|>b" + kEnd).content, "a");
  EXPECT_EQ(parse_response("a<|close|>response<|end_of_msg|>").content, "a");
  EXPECT_EQ(parse_response("a<|close|>respon", kLimit).content, "a");
}

TEST(XtmlTransitions, AValueKeepsEverythingThatDoesNotEndIt) {
  const auto value_of = [](const std::string& value) {
    const std::string arguments = arguments_of(argument("k", "string", value));
    return ordered_json::parse(arguments)["k"].get<std::string>();
  };
  for (const std::string& kept :
       {open("note k=\"v\""), close("note"), open("message role=\"user\""), open("argument key=\"x\""), close("json"),
        open("call tool=\"g\""), close("response"), open("think"), close("think"), std::string("<|sep|>"),
        std::string("[BOS]"), std::string("<|media_pad|>x"), std::string("<|open|>not a tag<|open|>b<|sep|>"),
        "<|open|>argument" + close("think"), std::string("<|close|>arg[PAD]ument<|sep|>"),
        "<|close|>" + std::string(5000, 'x') + "<|sep|>"}) {
    EXPECT_EQ(value_of("<" + kept + ">"), "<" + kept + ">");
  }
  EXPECT_EQ(arguments_of(open("json type=\"object\"") + "{" + close("argument") + open("note") + "}" + close("json")),
            "{" + close("argument") + open("note") + "}");
  EXPECT_EQ(arguments_of(argument("k", "string", "a<|close|>argument<|open|>argument key=\"l\"<|sep|>b")),
            R"({"k": "a", "l": "b"})");
}

TEST(XtmlTransitions, ACutCallIsLeftOut) {
  const std::string first = in_call(argument("a", "string", "1") + close("call"));
  const std::string second = open("call tool=\"g\"");
  const struct {
    std::string script;
    ReplyStop stop;
    size_t num_calls;
    bool unfinished;
    ReplyFinish finish;
  } cases[] = {
      {first + second, kLimit, 1, true, ReplyFinish::kLength},
      {first + second, kStopped, 2, false, ReplyFinish::kToolCalls},
      {first + second + open("argument key=\"k\"") + "x", kLimit, 1, true, ReplyFinish::kLength},
      {first + second + open("argument key=\"k\"") + "x", kStopped, 1, true, ReplyFinish::kToolCalls},
      {first + second + open("json") + "{", kStopped, 1, true, ReplyFinish::kToolCalls},
      {first + second + open("json") + "{" + kEnd, kLimit, 1, true, ReplyFinish::kToolCalls},
      {first + "<|open|>call tool=\"g\"", kLimit, 1, false, ReplyFinish::kToolCalls},
      {in_call(""), kLimit, 0, true, ReplyFinish::kLength},
      {in_call(open("json") + "{") + kEnd, kStopped, 0, true, ReplyFinish::kStop},
      {first, kLimit, 1, false, ReplyFinish::kToolCalls},
      {"x" + close("response"), kLimit, 0, false, ReplyFinish::kLength},
      {"x" + close("response"), kStopped, 0, false, ReplyFinish::kStop},
      {"", kLimit, 0, false, ReplyFinish::kLength},
  };
  for (const auto& item : cases) {
    SCOPED_TRACE(item.script);
    const ParsedReply reply = parse_response(item.script, item.stop);
    EXPECT_EQ(reply.tool_calls.size(), item.num_calls);
    EXPECT_EQ(reply.has_unfinished_call, item.unfinished);
    EXPECT_EQ(reply.finish, item.finish);
  }
}

TEST(XtmlHeader, FourThousandAndNinetySixBytes) {
  const std::string longest = "note" + std::string(4092, 'x');
  EXPECT_EQ(parse_response("a" + open(longest) + "b" + kEnd).content, "ab");
  EXPECT_EQ(parse_response("a" + open(longest + "y") + "b" + kEnd).content, "ayb");
  EXPECT_EQ(parse_response("a<|open|>" + longest + "yz<|open|>think<|sep|>b" + kEnd).content, "ayz");
  // A character that does not fit is not cut.
  EXPECT_EQ(parse_response("a<|open|>" + longest.substr(1) + "ä<|sep|>b" + kEnd).content, "aäb");
}

TEST(XtmlArguments, TypesAndSpelling) {
  EXPECT_EQ(arguments_of(""), "{}");
  EXPECT_EQ(arguments_of("text"), "{}");
  EXPECT_EQ(arguments_of(argument("a", "string", "1") + argument("b", "number", "1e2")), R"({"a": "1", "b": 1e2})");
  EXPECT_EQ(arguments_of(argument("n", "number", "123456789012345678901234567890")),
            R"({"n": 123456789012345678901234567890})");
  EXPECT_EQ(arguments_of(argument("n", "number", "1e999")), R"({"n": 1e999})");
  EXPECT_EQ(arguments_of(argument("n", "number", "3 or 4")), R"({"n": "3 or 4"})");
  EXPECT_EQ(arguments_of(argument("n", "number", "")), R"({"n": ""})");
  EXPECT_EQ(arguments_of(argument("o", "object", R"({"x": [1, {}], "y": null} )")),
            R"({"o": {"x": [1, {}], "y": null} })");
  EXPECT_EQ(arguments_of(argument("o", "object", "{\"x\": 1,}")), R"({"o": "{\"x\": 1,}"})");
  EXPECT_EQ(arguments_of(argument("b", "boolean", "True")), R"({"b": "True"})");
  EXPECT_EQ(arguments_of(argument("b", "boolean", "true")), R"({"b": true})");
  EXPECT_EQ(arguments_of(argument("s", "string", "a\n\"b\"\\\x01ä\xF0\x9F\x98\x80")),
            "{\"s\": \"a\\n\\\"b\\\"\\\\\\u0001ä\xF0\x9F\x98\x80\"}");
  EXPECT_EQ(arguments_of(open("argument key=\"\"") + "x" + close("argument")), R"({"": "x"})");
  EXPECT_EQ(arguments_of(open("argument type=\"string\"") + "x" + close("argument")), "{}");
  EXPECT_EQ(arguments_of(argument("q&quot;&amp;quot;", "string", "&amp;")), R"({"q\"&quot;": "&amp;"})");
  EXPECT_EQ(arguments_of(open("json") + "{\"a\":" + close("json")), "{\"a\":");
  EXPECT_EQ(arguments_of(open("json") + " \n" + close("json")), " \n{}");
  EXPECT_EQ(arguments_of(open("json") + "{}" + close("json") + argument("a", "string", "1")), "{}");
  EXPECT_EQ(arguments_of(argument("a", "string", "1") + open("json") + "[2]" + close("json")), R"({"a": "1"})");
}

TEST(XtmlArguments, OfARepeatedKeyTheLastCounts) {
  const Tokenizer tokenizer = named_tokenizer(single_bytes());
  const auto ids = tokenizer.encode_control(
      one_call(argument("k", "string", "1") + argument("l", "number", "2") + argument("k", "number", "3")));
  const auto run = [&](bool streams) {
    return run_reply(tokenizer, ChatFormat::kXtml, options_from(ReplyRegion::kResponse, streams), ids, kStopped);
  };
  EXPECT_EQ(run(false).reply.tool_calls.at(0).arguments, R"({"k": 3, "l": 2})");
  EXPECT_EQ(run(true).reply.tool_calls.at(0).arguments, R"({"k": "1", "l": 2, "k": 3})");
}

TEST(XtmlArguments, StreamedAsTheyAreKnown) {
  const Tokenizer tokenizer = named_tokenizer(single_bytes());
  auto parser = ReplyParser::create(tokenizer, ChatFormat::kXtml, options_from(ReplyRegion::kResponse, true));
  ASSERT_TRUE(parser.is_ok());
  std::vector<ReplyEvent> events;
  const auto feed = [&](const std::string& script) {
    events.clear();
    for (const TokenId id : tokenizer.encode_control(script)) parser.value().append(id, events);
    std::string text;
    for (const ReplyEvent& event : events) text += event.text + "|";
    return text;
  };
  EXPECT_EQ(feed(in_call("")), "f|");
  EXPECT_EQ(feed(open("argument key=\"k\"")), "{\"k\": \"|");
  EXPECT_EQ(feed("a\""), "a|\\\"|");
  EXPECT_EQ(feed(close("argument")), "\"|");
  EXPECT_EQ(feed(open("argument key=\"n\" type=\"number\"") + "12"), "");
  EXPECT_EQ(feed(close("argument")), ", \"n\": 12|");
  EXPECT_EQ(feed(close("call")), "}||");
  EXPECT_EQ(events.back().kind, ReplyEvent::Kind::kToolCallEnd);
  EXPECT_FALSE(parser.value().finished());
  EXPECT_EQ(feed(kEnd), "");
  EXPECT_TRUE(parser.value().finished());
}

// Against another parser, over texts that are JSON or nearly so.
TEST(ReplyJson, AgreesWithAnotherParser) {
  const std::string whole = R"([{"a": [1, -0.5e+3, 10E2, 0], "b\u00e4\n": {}, "": [[]]}, true, false, null, "\\\""])";
  EXPECT_TRUE(is_json_text(whole));
  Random random(7);
  const std::string_view alphabet = "{}[]:,\"\\ \n01-+.eEtrufalsn";
  int num_valid = 0;
  for (int round = 0; round < 20000; ++round) {
    const size_t begin = random() % whole.size();
    std::string text = whole.substr(begin, random() % 24);
    if (round % 4 == 0) text = whole;
    for (uint32_t edits = random() % 3; edits > 0 && !text.empty(); --edits) {
      const size_t place = random() % text.size();
      if (random() % 2 == 0) {
        text[place] = alphabet[random() % alphabet.size()];
      } else {
        text.erase(place, 1);
      }
    }
    const bool expected = ordered_json::accept(text);
    EXPECT_EQ(is_json_text(text), expected) << text;
    num_valid += expected ? 1 : 0;
  }
  EXPECT_GT(num_valid, 1000);
  EXPECT_TRUE(is_json_text(" 1e999 "));
  EXPECT_FALSE(is_json_text("01"));
  EXPECT_FALSE(is_json_text(""));
  EXPECT_FALSE(is_json_text(std::string(1000000, '[')));
  EXPECT_TRUE(is_json_text(std::string(1000000, '[') + std::string(1000000, ']')));
}

}  // namespace
}  // namespace tandem::test

// What counts as right: schemas, equality of JSON, replies read from tokens, and the interval of a share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/cat.h"
#include "corpus/chat_generator.h"
#include "evaluate/chat_cases.h"
#include "evaluate/json_schema.h"
#include "evaluate/judge.h"
#include "evaluate/small_model.h"
#include "evaluate/wilson.h"
#include "text/json_format.h"

namespace tandem {
namespace {

using test::SmallModel;
using ::testing::HasSubstr;

ChatGenerator generator_of(uint64_t seed, int64_t max_gap_tokens) {
  ChatGeneratorOptions options;
  options.seed = seed;
  options.max_gap_tokens = max_gap_tokens;
  options.tokenizer = &SmallModel::get().tokenizer();
  return ChatGenerator(options);
}

ParsedReply saying(const char* content) {
  ParsedReply reply;
  reply.content = content;
  return reply;
}

JsonValue json(std::string_view text) { return parse_json(text, "test").value(); }

// Against tabulated values (Brown, Cai, DasGupta 2001 use the same form), and what must hold for every count.
TEST(Wilson, Interval) {
  const ShareInterval nine_of_ten = wilson_interval(9, 10);
  EXPECT_NEAR(nine_of_ten.low, 0.59585, 1e-5);
  EXPECT_NEAR(nine_of_ten.high, 0.98213, 1e-5);
  EXPECT_NEAR(wilson_interval(0, 20).high, 0.16113, 1e-5);
  EXPECT_EQ(wilson_interval(0, 20).low, 0);
  EXPECT_EQ(wilson_interval(20, 20).high, 1);
  EXPECT_EQ(wilson_interval(0, 0).low, 0);
  EXPECT_EQ(wilson_interval(0, 0).high, 1);
  for (int64_t k = 0; k <= 50; ++k) {
    const ShareInterval interval = wilson_interval(k, 50), mirrored = wilson_interval(50 - k, 50);
    EXPECT_LE(interval.low, static_cast<double>(k) / 50);
    EXPECT_GE(interval.high, static_cast<double>(k) / 50);
    EXPECT_NEAR(interval.low, 1 - mirrored.high, 1e-12);
  }
}

TEST(JsonSchema, FaultsNameThePath) {
  const JsonValue schema = json(R"({"type":"object","description":"x","properties":{"a":{"type":"integer","minimum":2},
    "b":{"type":["string","null"]},"c":{"type":"array","items":{"enum":["x","y",3]}}},"required":["a"],
    "additionalProperties":false})");
  const auto fault = [&](std::string_view value) { return schema_fault(json(value), schema); };
  for (const char* good :
       {R"({"a":2})", R"({"a":20.0,"b":null})", R"({"b":"s","a":7,"c":["x",3.0]})", R"({"a":3,"c":[]})"}) {
    EXPECT_EQ(fault(good), "") << good;
  }
  EXPECT_THAT(fault("[1]"), HasSubstr("the value: expected object"));
  EXPECT_THAT(fault("{}"), HasSubstr("a member \"a\""));
  EXPECT_THAT(fault(R"({"a":"2"})"), HasSubstr("a: expected integer, found \"2\""));
  EXPECT_THAT(fault(R"({"a":2.5})"), HasSubstr("a: expected integer"));
  EXPECT_THAT(fault(R"({"a":1})"), HasSubstr("a minimum of 2"));
  EXPECT_THAT(fault(R"({"a":2,"b":1})"), HasSubstr("b: expected string or null"));
  EXPECT_THAT(fault(R"({"a":2,"c":["x","z"]})"), HasSubstr("c[1]: expected one of"));
  EXPECT_THAT(fault(R"({"a":2,"d":1})"), HasSubstr("d: expected no such member"));
  // What is not understood does not pass.
  EXPECT_THAT(schema_fault(json("1"), json(R"({"oneOf":[]})")), HasSubstr("\"oneOf\" is not understood"));
  EXPECT_EQ(schema_fault(json("1"), json("{}")), "");
}

TEST(JsonSchema, SameJson) {
  EXPECT_TRUE(same_json(json(R"({"a":1,"b":[true,null,"x"]})"), json(R"({"b":[true,null,"x"],"a":1.0})")));
  EXPECT_FALSE(same_json(json(R"({"a":1})"), json(R"({"a":1,"b":2})")));
  EXPECT_FALSE(same_json(json("[1,2]"), json("[2,1]")));
  EXPECT_FALSE(same_json(json("\"1\""), json("1")));
  EXPECT_FALSE(same_json(json("9007199254740993"), json("9007199254740992")));  // one double, two integers
}

// The reply that the generator expects, as the tokens that the model would have to write.
GreedyReply expected_tokens(const Tokenizer& tokenizer, const ChatExample& example) {
  const ChatTokens tokens = encode_example(tokenizer, example).value();
  GreedyReply reply;
  reply.tokens.assign(tokens.ids.begin() + static_cast<std::ptrdiff_t>(tokens.num_prompt), tokens.ids.end());
  reply.finish_reason = FinishReason::kStop;
  if (reply.tokens.back() == *tokenizer.control_id("<|end_of_msg|>")) reply.tokens.pop_back();
  return reply;
}

// Every family: the expected reply is right and valid; another example's reply, or one that was cut off, is not.
TEST(Judge, TheExpectedReplyIsRightAndAnotherIsNot) {
  const Tokenizer& tokenizer = SmallModel::get().tokenizer();
  const ChatGenerator generator = generator_of(3, 32);
  for (int f = 0; f < kNumChatFamilies; ++f) {
    const auto family = static_cast<ChatFamily>(f);
    int64_t others_right = 0;
    for (uint64_t i = 0; i < 40; ++i) {
      SCOPED_TRACE(cat(chat_family_name(family), " ", i));
      const ChatExample example = generator.example(family, ChatSplit::kTest, i);
      const GreedyReply reply = expected_tokens(tokenizer, example);
      const Verdict verdict = judge_reply(example, read_reply(tokenizer, example.request, reply).value());
      EXPECT_TRUE(verdict.right) << verdict.fault;
      EXPECT_TRUE(verdict.valid);
      EXPECT_EQ(verdict.fault, "");

      const ChatExample other = generator.example(family, ChatSplit::kTest, i + 1000);
      const Verdict wrong = judge_reply(other, read_reply(tokenizer, example.request, reply).value());
      others_right += wrong.right ? 1 : 0;
      EXPECT_EQ(wrong.fault.empty(), wrong.right);

      GreedyReply nothing;
      nothing.finish_reason = FinishReason::kStop;
      EXPECT_FALSE(judge_reply(example, read_reply(tokenizer, example.request, nothing).value()).right);
    }
    // Small worlds repeat themselves: greetings, and numbers that contain others.
    EXPECT_LT(others_right, family == ChatFamily::kGreeting ? 30 : 8) << chat_family_name(family);
  }
}

ChatExample call_example() {
  ChatExample example;
  example.family = ChatFamily::kToolCall;
  example.request.tools = {
      {"set_timer", json(R"({"type":"function","function":{"name":"set_timer","parameters":{"type":"object",
            "properties":{"minutes":{"type":"integer"},"label":{"type":"string"}},"required":["minutes","label"]}}})")}};
  example.reply.tool_calls = {{"call_1", "set_timer", json(R"({"minutes":5,"label":"tea"})")}};
  return example;
}

ParsedReply calling(std::string name, std::string arguments) {
  ParsedReply reply;
  reply.tool_calls = {{std::nullopt, std::move(name), std::move(arguments)}};
  return reply;
}

TEST(Judge, ValidCallsAndExactCalls) {
  const ChatExample example = call_example();
  Verdict verdict = judge_reply(example, calling("set_timer", R"({"label": "tea", "minutes": 5.0})"));
  EXPECT_TRUE(verdict.right && verdict.valid) << verdict.fault;
  verdict = judge_reply(example, calling("set_timer", R"({"minutes": 6, "label": "tea"})"));
  EXPECT_TRUE(verdict.valid && !verdict.right);
  EXPECT_THAT(verdict.fault, HasSubstr(R"(expected the arguments {"minutes": 5, "label": "tea"})"));
  ParsedReply cut_off;
  cut_off.has_unfinished_call = true;
  const std::pair<ParsedReply, const char*> invalid[] = {
      {calling("set_alarm", "{}"), "which is not declared"},
      {calling("set_timer", R"({"minutes": "5", "label": "tea"})"), "minutes: expected integer"},
      {calling("set_timer", R"({"minutes": 5})"), "a member \"label\""},
      {calling("set_timer", R"([5, "tea"])"), "no object"},
      {calling("set_timer", R"({"minutes": )"), "arguments"},
      {saying("5 minutes"), "nothing was called"},
      {cut_off, "cut off"}};
  for (const auto& [reply, fault] : invalid) {
    verdict = judge_reply(example, reply);
    EXPECT_FALSE(verdict.valid || verdict.right);
    EXPECT_THAT(verdict.fault, HasSubstr(fault));
  }
  // Twice the same call is valid and not what was asked for.
  ParsedReply twice = calling("set_timer", R"({"minutes": 5, "label": "tea"})");
  twice.tool_calls.push_back(twice.tool_calls[0]);
  verdict = judge_reply(example, twice);
  EXPECT_TRUE(verdict.valid && !verdict.right);
}

TEST(Judge, CallsWhereAnAnswerIsWantedAreWrong) {
  ChatExample example = call_example();
  example.family = ChatFamily::kUnknownTool;
  example.reply.tool_calls.clear();
  example.answer = "I have no tool";
  ParsedReply reply = calling("set_timer", R"({"minutes": 5, "label": "tea"})");
  reply.content = "I have no tool";
  EXPECT_FALSE(judge_reply(example, reply).right);
  reply.tool_calls.clear();
  EXPECT_TRUE(judge_reply(example, reply).right);
}

TEST(Judge, JsonAnswers) {
  ChatExample example;
  example.family = ChatFamily::kJson;
  example.answer = R"({"name": "Ada", "age": 36})";
  example.request.response_format = {ResponseFormat::Kind::kJsonSchema,
                                     json(R"({"type":"object","properties":{"age":{"type":"integer"}}})")};
  const auto verdict = [&](const char* content) { return judge_reply(example, saying(content)); };
  EXPECT_TRUE(verdict(R"( {"age":36,"name":"Ada"} )").right);
  EXPECT_TRUE(verdict(R"({"age":37,"name":"Ada"})").valid);
  EXPECT_FALSE(verdict(R"({"age":37,"name":"Ada"})").right);
  EXPECT_FALSE(verdict(R"({"age":"36","name":"Ada"})").valid);
  EXPECT_FALSE(verdict(R"(Here it is: {"age":36,"name":"Ada"})").valid);
  EXPECT_FALSE(verdict("[]").valid);
  EXPECT_FALSE(verdict("").valid);
}

TEST(ChatCases, ArithmeticHasTwoDigitsAndPromptsEndOpen) {
  const Tokenizer& tokenizer = SmallModel::get().tokenizer();
  const ChatGenerator generator = generator_of(1, 64);
  const auto cases = make_chat_cases(generator, tokenizer, {ChatFamily::kArithmetic, 60, std::nullopt}).value();
  ASSERT_EQ(cases.size(), 60u);
  std::map<std::string, int> operations;
  for (const ChatCase& one : cases) {
    ++operations[one.operation];
    ASSERT_EQ(one.example.keys.size(), 1u);
    EXPECT_EQ(chat_split_of(one.example.keys[0]), ChatSplit::kTest);
    const size_t colon = one.example.keys[0].find(':');
    EXPECT_EQ(one.example.keys[0].size(), colon + 6) << one.example.keys[0];
    const ChatTokens tokens = encode_example(tokenizer, one.example).value();
    EXPECT_EQ(
        one.task.prompt,
        std::vector<TokenId>(tokens.ids.begin(), tokens.ids.begin() + static_cast<std::ptrdiff_t>(tokens.num_prompt)));
    EXPECT_GT(one.task.max_tokens, static_cast<int64_t>(tokens.ids.size() - tokens.num_prompt));
  }
  EXPECT_EQ(operations.size(), 3u);
}

}  // namespace
}  // namespace tandem

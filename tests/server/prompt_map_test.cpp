// Where the tokens of a prompt come from: every one has a place, and the place is a field of the request.
#include "server/prompt_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/chat_format.h"
#include "text/chat_request.h"
#include "text/text_fixtures.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Tokenizer nano_tokenizer() {
  auto tokenizer = Tokenizer::load(data_path("../../models/nano"), 3072);
  EXPECT_TRUE(tokenizer.is_ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

// Every token of a prompt has a place, and the text of a place is the field's.
TEST(PromptMap, PlacesAreTheFields) {
  const Tokenizer tokenizer = nano_tokenizer();
  const auto request = parse_chat_request(R"({"tools":[{"type":"function","function":{"name":"top"}}],"messages":[
    {"role":"system","content":"SYS"},
    {"role":"user","content":[{"type":"text","text":"U<|open|>one "},{"type":"text","text":"two"}]},
    {"role":"assistant","content":"ANS","reasoning_content":"WHY","tool_calls":[
      {"id":"1","type":"function","function":{"name":"top","arguments":"{\"a\":\"x\",\"b\":2}"}}]},
    {"role":"tool","tool_call_id":"1","content":"RES"},
    {"role":"system","tools":[{"type":"function","function":{"name":"more"}}]},
    {"role":"user","content":"END"}],"tool_choice":"required","response_format":{"type":"json_object"}})");
  ASSERT_TRUE(request.is_ok()) << request.status().message();
  const auto segments = render_chat(tokenizer, request.value());
  ASSERT_TRUE(segments.is_ok());
  const std::vector<TokenId> ids = encode_segments(tokenizer, segments.value());
  const PromptMap map(tokenizer, ChatFormat::kXtml, ids);
  std::map<std::string, std::string> texts;
  int64_t covered = 0;
  for (const PromptPlace& place : map.places()) {
    EXPECT_EQ(place.begin, covered);
    EXPECT_GT(place.end, place.begin);
    covered = place.end;
    for (int64_t i = place.body_begin; i < place.end && !tokenizer.is_control(ids[static_cast<size_t>(i)]); ++i) {
      texts[place.field()] += tokenizer.token_bytes(ids[static_cast<size_t>(i)]);
    }
    EXPECT_EQ(map.at(place.begin).field(), place.field());
    EXPECT_EQ(map.at(place.end - 1).field(), place.field());
  }
  EXPECT_EQ(covered, static_cast<int64_t>(ids.size()));
  EXPECT_EQ(texts["messages[0].content"], "SYS");
  EXPECT_EQ(texts["messages[1].content"], "U<|open|>one two");
  EXPECT_EQ(texts["messages[2].reasoning_content"], "WHY");
  EXPECT_EQ(texts["messages[2].content"], "ANS");
  EXPECT_EQ(texts["messages[2].tool_calls[0].function.arguments.a"], "x");
  EXPECT_EQ(texts["messages[2].tool_calls[0].function.arguments.b"], "2");
  EXPECT_EQ(texts["messages[3].content"], "RES");
  EXPECT_THAT(texts["messages[4].tools"], StartsWith("## New Tools"));
  EXPECT_EQ(texts["messages[5].content"], "END");
  EXPECT_THAT(texts["tools"], StartsWith("# Tools"));
  EXPECT_THAT(texts["reasoning_effort"], HasSubstr("thinking_effort=max"));
  EXPECT_THAT(texts["tool_choice"], HasSubstr("required"));
  EXPECT_THAT(texts["response_format"], HasSubstr("json_object"));
}

}  // namespace
}  // namespace tandem::test

// Logprobs of a chat: one entry for each piece of content, whole characters only.
#include <gtest/gtest.h>

#include "server/api_harness.h"
#include "server/logprob_entries.h"
#include "support/effort.h"

namespace tandem::test {
namespace {

std::string joined_tokens(const ordered_json& entries) {
  std::string out;
  for (const auto& entry : entries) out += entry["token"].get<std::string>();
  return out;
}

void expect_entries(const ordered_json& entries, size_t num_top) {
  for (const auto& entry : entries) {
    const std::string token = entry["token"];
    std::vector<int> bytes;
    for (const char c : token) bytes.push_back(static_cast<unsigned char>(c));
    if (token.find("\uFFFD") == std::string::npos) {
      EXPECT_EQ(entry["bytes"], ordered_json(bytes)) << "the bytes of the text";
    }
    EXPECT_TRUE(entry["logprob"].is_number());
    EXPECT_EQ(entry["top_logprobs"].size(), num_top);
  }
}

TEST(ChatLogprobs, ContentOnlyWithTheAlternativesAskedFor) {
  Api api;
  api.says("think" + kAnswer + "ab" + kDone);
  for (const int top : {0, 1, 20}) {
    ordered_json body = with(kHello, {{"logprobs", true}, {"top_logprobs", top}});
    const ordered_json choice = api.chat(body)["choices"][0];
    EXPECT_EQ(api.engine.submitted.back().logprobs, top);
    const ordered_json& entries = choice["logprobs"]["content"];
    EXPECT_EQ(joined_tokens(entries), "ab");
    expect_entries(entries, static_cast<size_t>(top));
    EXPECT_FLOAT_EQ(entries[0]["logprob"].get<float>(), api.engine.logprob_of(TokenId('a')));
    if (top > 0) {
      EXPECT_EQ(entries[0]["top_logprobs"][0]["token"], "a");
      EXPECT_FLOAT_EQ(entries[0]["top_logprobs"][0]["logprob"].get<float>(), api.engine.logprob_of(TokenId('a')));
    }
    StreamRules rules;
    rules.logprobs = true;
    EXPECT_EQ(api.stream(body, rules).messages.at(0).logprobs, entries);
  }
  EXPECT_TRUE(api.chat(kHello)["choices"][0]["logprobs"].is_null());
}

TEST(ChatLogprobs, SplitCharactersAreOneEntry) {
  Api api;
  api.says("t" + kAnswer + "a日\xF0\x9F\x98\x80" + kDone);
  const ordered_json entries =
      api.chat(with(kHello, {{"logprobs", true}, {"top_logprobs", 2}}))["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[1]["token"], "日");
  EXPECT_EQ(entries[1]["bytes"], (ordered_json{0xE6, 0x97, 0xA5}));
  float sum = 0;
  for (const int byte : {0xE6, 0x97, 0xA5}) sum += api.engine.logprob_of(TokenId(byte));
  EXPECT_FLOAT_EQ(entries[1]["logprob"].get<float>(), sum);
  expect_entries(entries, 2);
}

TEST(ChatLogprobs, InfinityIsANumber) {
  Api api;
  api.says("t" + kAnswer + "a" + kDone);
  api.engine.logprob_of = [](TokenId) { return -INFINITY; };
  const ordered_json entries =
      api.chat(with(kHello, {{"logprobs", true}, {"top_logprobs", 1}}))["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(entries[0]["logprob"], -9999.0);
  EXPECT_EQ(entries[0]["top_logprobs"][0]["logprob"], -9999.0);
}

// Entries, joined, are the content; however the tokens cut characters, and wherever a stop string cuts the text.
TEST(ChatLogprobs, RandomTokensJoinToTheContent) {
  Random random(11);
  std::vector<std::string> tokens = single_bytes();
  for (const char* more : {"\xE6\x97", "\xA5\xE6", "日本", "é ", "\n\n", "ab", "\xF0\x9F\x98", "response"})
    tokens.emplace_back(more);
  const Tokenizer tokenizer = named_tokenizer(tokens);
  const std::vector<std::string> parts = {"日", "本", "é", " ", "\n", "a", "b", "\xF0\x9F\x98\x80"};
  for (int round = 0; round < effort(200); ++round) {
    std::string content;
    for (size_t n = random() % 12; n > 0; --n) content += parts[random() % parts.size()];
    // A random cover of the text by tokens.
    std::vector<TokenId> ids = tokenizer.encode_control("t" + kAnswer);
    for (size_t at = 0; at < content.size();) {
      std::vector<size_t> fitting;
      for (size_t id = 0; id < tokens.size(); ++id) {
        if (std::string_view(content).substr(at).starts_with(tokens[id])) fitting.push_back(id);
      }
      const size_t id = fitting[random() % fitting.size()];
      ids.emplace_back(static_cast<int32_t>(id));
      at += tokens[id].size();
    }
    for (const TokenId id : tokenizer.encode_control(kDone)) ids.push_back(id);
    Api api(named_tokenizer(tokens));
    api.engine.script = [&](const EngineRequest&, int64_t) {
      return FakeEngine::Reply{ids, EngineFinish::kLength, {}};
    };
    ordered_json body = with(kHello, {{"logprobs", true}, {"top_logprobs", 1}});
    StreamRules rules;
    rules.logprobs = true;
    const ordered_json choice = api.chat(body)["choices"][0];
    EXPECT_EQ(joined_tokens(choice["logprobs"]["content"]), content);
    EXPECT_EQ(choice["message"]["content"], content);
    expect_entries(choice["logprobs"]["content"], 1);
    EXPECT_EQ(api.stream(body, rules).messages.at(0).logprobs, choice["logprobs"]["content"]);
    body["stop"] = {parts[random() % parts.size()], "ab"};
    const ordered_json cut = api.chat(body)["choices"][0];
    const std::string shown = joined_tokens(cut["logprobs"]["content"]);
    EXPECT_TRUE(shown.starts_with(cut["message"]["content"].get<std::string>()));
    EXPECT_TRUE(content.starts_with(shown));
    EXPECT_EQ(api.stream(body, rules).messages.at(0).logprobs, cut["logprobs"]["content"]);
  }
}

}  // namespace
}  // namespace tandem::test

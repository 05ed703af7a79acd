#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "text_fixtures.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::string& ranks, const std::string& config, int64_t vocab_size) {
  const auto tokenizer = Tokenizer::from_memory(ranks, config, vocab_size);
  if (tokenizer.is_ok()) return "accepted";
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kInvalidArgument);
  return tokenizer.status().message();
}

std::string decoded(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip_special = false) {
  const auto text = tokenizer.decode(ids, skip_special);
  EXPECT_TRUE(text.is_ok()) << text.status().message();
  return text.is_ok() ? text.value() : std::string();
}

TEST(Tokenizer, BpeToyFixture) {
  const ordered_json fixture = chat_fixture("bpe_toy.json");
  const std::string ranks = fixture["rank_file"];
  const auto tokenizer = Tokenizer::from_memory(ranks, "{}", 273 + 16);
  ASSERT_TRUE(tokenizer.is_ok()) << tokenizer.status().message();
  for (const auto& entry : fixture["cases"]) {
    const std::string text = entry["text"];
    SCOPED_TRACE(text);
    std::vector<std::string> pieces;
    for (const auto piece : tokenizer.value().pre_tokenize(text)) pieces.emplace_back(piece);
    EXPECT_EQ(pieces, entry["pieces"].get<std::vector<std::string>>());
    EXPECT_EQ(tokenizer.value().encode_text(text), token_ids(entry["ids"]));
    EXPECT_EQ(decoded(tokenizer.value(), token_ids(entry["ids"])), text);
  }
}

TEST(Tokenizer, SpecialTokensFixture) {
  // As many ranks as the fixture says, so that the ids are the released ones: bytes, then four-byte fillers.
  const ordered_json fixture = chat_fixture("special_tokens.json");
  const auto num_ranks = fixture["n_ranks"].get<int64_t>();
  std::vector<std::string> tokens = single_bytes();
  for (int64_t i = 256; i < num_ranks; ++i) {
    tokens.push_back({'\xFF', static_cast<char>(i >> 16), static_cast<char>(i >> 8), static_cast<char>(i)});
  }
  const std::string ranks = rank_file(tokens);
  for (const std::string list : {"kimi_k3", "kimi_k2"}) {
    SCOPED_TRACE(list);
    auto names = fixture_names(list, num_ranks);
    const auto tokenizer = Tokenizer::from_memory(ranks, control_config(names), fixture["vocab_size"]);
    ASSERT_TRUE(tokenizer.is_ok()) << tokenizer.status().message();
    EXPECT_EQ(tokenizer.value().num_ranks(), num_ranks);
    EXPECT_EQ(tokenizer.value().vocab_size(), fixture["vocab_size"].get<int64_t>());
    for (const auto& entry : fixture[list]) {
      const TokenId id(entry["id"].get<int32_t>());
      const std::string name = entry["text"];
      EXPECT_EQ(tokenizer.value().token_bytes(id), name);
      EXPECT_EQ(tokenizer.value().control_id(name), id);
      EXPECT_TRUE(tokenizer.value().is_control(id));
      EXPECT_EQ(tokenizer.value().encode_control(name), std::vector<TokenId>{id});
    }
    EXPECT_EQ(tokenizer.value().token_bytes(TokenId(163700)), "<|reserved_token_163700|>");
    EXPECT_FALSE(tokenizer.value().is_control(TokenId(163583)));
    EXPECT_FALSE(tokenizer.value().is_control(TokenId(163840)));
  }
}

TEST(Tokenizer, TokenIdSamplesOfTheRealVocabulary) {
  const char* path = std::getenv("TANDEM_TIKTOKEN_MODEL");
  if (path == nullptr) GTEST_SKIP() << "needs the real rank file: set TANDEM_TIKTOKEN_MODEL to Kimi's tiktoken.model";
  const auto tokenizer =
      Tokenizer::from_memory(read_text(path), control_config(fixture_names("kimi_k3", 163584)), 163840, path);
  ASSERT_TRUE(tokenizer.is_ok()) << tokenizer.status().message();
  const ordered_json fixture = chat_fixture("token_id_samples.json");
  for (const std::string list : {"single_tokens", "single_tokens_k2"}) {
    for (const auto& pair : fixture[list]) {
      const std::string text = pair[0];
      const auto ids = pair[1].is_array() ? token_ids(pair[1]) : token_ids(ordered_json::array({pair[1]}));
      EXPECT_EQ(tokenizer.value().encode_text(text), ids) << text;
    }
  }
  for (const auto& entry : fixture["sequences"]) {
    if (!entry.contains("ids")) continue;  // segment_ids come from segments encoded alone
    EXPECT_EQ(tokenizer.value().encode_control(entry["text"].get<std::string>()), token_ids(entry["ids"]));
  }
}

TEST(Tokenizer, OrdinaryTextNeverGivesControlIds) {
  const Tokenizer tokenizer = chat_tokenizer();
  for (int64_t i = tokenizer.num_ranks(); i < tokenizer.vocab_size(); ++i) {
    const TokenId id(static_cast<int32_t>(i));
    const std::string name(tokenizer.token_bytes(id));
    const std::vector<TokenId> ids = tokenizer.encode_text("x" + name + name);
    for (const TokenId got : ids) EXPECT_LT(got.value, tokenizer.num_ranks()) << name;
    EXPECT_EQ(decoded(tokenizer, ids), "x" + name + name);
    EXPECT_EQ(tokenizer.encode_control(name), std::vector<TokenId>{id});
  }
}

TEST(Tokenizer, ControlNamesAreFoundInsidePieces) {
  const Tokenizer tokenizer = chat_tokenizer();
  const TokenId sep = *tokenizer.control_id("<|sep|>");
  // `"<` is one token and one piece here: matching at piece starts only would miss the name.
  const std::vector<TokenId> ids = tokenizer.encode_control("user\"<|sep|>user");
  ASSERT_EQ(ids.size(), 4u);
  EXPECT_EQ(ids[2], sep);
  EXPECT_EQ(ids[0], ids[3]);
  EXPECT_EQ(decoded(tokenizer, ids), "user\"<|sep|>user");
  EXPECT_EQ(decoded(tokenizer, ids, /*skip_special=*/true), "user\"user");
}

TEST(Tokenizer, EarliestThenLongestControlNameWins) {
  const auto tokenizer = Tokenizer::from_memory(
      rank_file(single_bytes()), control_config({{256, "<a"}, {257, "<ab>"}, {258, "<abc"}, {259, "b>"}}), 260);
  ASSERT_TRUE(tokenizer.is_ok()) << tokenizer.status().message();
  const auto encode = [&](std::string_view text) { return tokenizer.value().encode_control(text); };
  const auto ids = [](std::initializer_list<int> values) {
    std::vector<TokenId> out;
    for (const int value : values) out.emplace_back(value);
    return out;
  };
  EXPECT_EQ(encode("<ab>"), ids({257}));
  EXPECT_EQ(encode("<abc>"), ids({258, '>'}));
  EXPECT_EQ(encode("<ab"), ids({256, 'b'}));
  EXPECT_EQ(encode("<<ab>>"), ids({'<', 257, '>'}));
  EXPECT_EQ(encode("ab>"), ids({'a', 259}));
  EXPECT_EQ(encode("<"), ids({'<'}));
  EXPECT_EQ(encode(""), ids({}));
}

TEST(Tokenizer, AnyBytesRoundTrip) {
  const Tokenizer tokenizer = chat_tokenizer();
  for (const std::string& text : {std::string("\xFF\xFE\x80"), std::string("a\0b", 3), std::string("\xED\xA0\x80 x"),
                                  std::string("\xF0\x9F\x98"), std::string("é\xCC"), std::string()}) {
    EXPECT_EQ(decoded(tokenizer, tokenizer.encode_text(text)), text);
    EXPECT_EQ(decoded(tokenizer, tokenizer.encode_control(text)), text);
  }
}

TEST(Tokenizer, RankFileRefusals) {
  std::vector<std::string> tokens = single_bytes();
  const std::string good = rank_file(tokens);
  EXPECT_EQ(refusal(good, "{}", 300), "accepted");
  std::string crlf;
  for (const char c : good) crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(refusal("\n" + crlf + "\r\n\n", "{}", 300), "accepted");
  EXPECT_EQ(refusal(good.substr(0, good.size() - 1), "{}", 300), "accepted") << "no newline at the end";

  EXPECT_THAT(refusal("", "{}", 300), HasSubstr("256 bytes"));
  EXPECT_THAT(refusal(good + "!!!! 256\n", "{}", 300), HasSubstr("line 257: expected base64"));
  EXPECT_THAT(refusal(good + "YWI 256\n", "{}", 300), HasSubstr("line 257: expected base64"));
  EXPECT_THAT(refusal(good + " 256\n", "{}", 300), HasSubstr("line 257: expected base64"));
  EXPECT_THAT(refusal(good + "YWI=\n", "{}", 300), HasSubstr("base64 rank"));
  EXPECT_THAT(refusal(good + "YWI= x\n", "{}", 300), HasSubstr("decimal rank"));
  EXPECT_THAT(refusal(good + "YWI= -1\n", "{}", 300), HasSubstr("decimal rank"));
  EXPECT_THAT(refusal(good + "YWI= 99999999999999999999\n", "{}", 300), HasSubstr("decimal rank"));
  EXPECT_THAT(refusal(good + "YWI= 257\n", "{}", 300), HasSubstr("expected ranks 0 to 256"));
  EXPECT_THAT(refusal(good + "YWI= 7\n", "{}", 300), HasSubstr("found rank 7 again"));
  EXPECT_THAT(refusal(good + "QQ== 256\n", "{}", 300), HasSubstr("ranks 65 and 256 with the same bytes"));
  tokens[65] = "AB";
  EXPECT_THAT(refusal(rank_file(tokens), "{}", 300), HasSubstr("missing 1: 65"));
}

TEST(Tokenizer, ConfigRefusals) {
  const std::string ranks = rank_file(single_bytes());
  const auto config = [&](const std::string& json) { return refusal(ranks, json, 260); };
  EXPECT_EQ(config(R"({"added_tokens_decoder":{}})"), "accepted");
  EXPECT_THAT(config("{"), HasSubstr("tokenizer_config.json: expected JSON"));
  EXPECT_THAT(config("[]"), HasSubstr("expected an object, found array"));
  EXPECT_THAT(config(R"({"added_tokens_decoder":[]})"),
              HasSubstr("added_tokens_decoder: expected an object, found array"));
  EXPECT_THAT(config(R"({"added_tokens_decoder":null})"), HasSubstr("found null"));
  EXPECT_THAT(config(R"({"added_tokens_decoder":{"x":{"content":"a"}}})"), HasSubstr("decimal id"));
  EXPECT_THAT(config(R"({"added_tokens_decoder":{"0256":{"content":"a"}}})"), HasSubstr("decimal id"));
  EXPECT_THAT(config(R"({"added_tokens_decoder":{"255":{"content":"a"}}})"), HasSubstr("control block 256 to 259"));
  EXPECT_THAT(config(R"({"added_tokens_decoder":{"260":{"content":"a"}}})"), HasSubstr("control block 256 to 259"));
  EXPECT_THAT(config(R"({"added_tokens_decoder":{"256":{"content":""}}})"), HasSubstr("non-empty string"));
  EXPECT_THAT(config(R"({"added_tokens_decoder":{"256":{}}})"), HasSubstr("non-empty string"));
  EXPECT_THAT(config(R"({"added_tokens_decoder":{"256":7}})"), HasSubstr("non-empty string"));
  EXPECT_THAT(config(R"({"added_tokens_decoder":{"256":{"content":"a"},"258":{"content":"a"}}})"),
              HasSubstr("found \"a\" for ids 256 and 258"));
  EXPECT_THAT(config(R"({"added_tokens_decoder":{"256":{"content":"<|reserved_token_257|>"}}})"),
              HasSubstr("for ids 256 and 257"));
  EXPECT_THAT(refusal(ranks, "{}", 255), HasSubstr("expected a vocabulary of 256 to"));
  EXPECT_THAT(refusal(ranks, "{}", int64_t{1} << 40), HasSubstr("found 1099511627776"));
  EXPECT_THAT(refusal(ranks, "{}", int64_t{1} << 30), HasSubstr("control ids"));
}

TEST(Tokenizer, LoadNamesAMissingFile) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "tandem_tokenizer_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  auto tokenizer = Tokenizer::load(folder.string(), 260);
  ASSERT_FALSE(tokenizer.is_ok());
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(tokenizer.status().message(), HasSubstr((folder / "tiktoken.model").string()));

  std::ofstream(folder / "tiktoken.model") << rank_file(single_bytes());
  tokenizer = Tokenizer::load(folder.string(), 260);
  ASSERT_FALSE(tokenizer.is_ok());
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(tokenizer.status().message(), HasSubstr((folder / "tokenizer_config.json").string()));

  std::ofstream(folder / "tokenizer_config.json") << control_config({{256, "<|open|>"}});
  tokenizer = Tokenizer::load(folder.string(), 260);
  ASSERT_TRUE(tokenizer.is_ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer.value().control_id("<|open|>"), TokenId(256));
  std::filesystem::remove_all(folder);
}

TEST(Tokenizer, DecodeRefusesIdsOutsideTheVocabulary) {
  const Tokenizer tokenizer = chat_tokenizer();
  for (const int32_t id : {-1, static_cast<int32_t>(tokenizer.vocab_size())}) {
    const std::vector<TokenId> ids{TokenId(65), TokenId(id)};
    const auto text = tokenizer.decode(ids, false);
    ASSERT_FALSE(text.is_ok());
    EXPECT_THAT(text.status().message(),
                HasSubstr(cat("token 1: expected an id of 0 to ", tokenizer.vocab_size() - 1)));
  }
}

}  // namespace
}  // namespace tandem::test

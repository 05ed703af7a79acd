#include "corpus/corpus_shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "corpus/bpe_trainer.h"
#include "corpus/corpus_support.h"
#include "corpus/shard_documents.h"
#include "corpus/token_shard.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;

std::string error_of(std::string_view recipe) {
  const auto parsed = parse_corpus_recipe(recipe, "data.json");
  return parsed.is_ok() ? "" : std::string(parsed.status().message());
}

constexpr std::string_view kSources = R"("sources":[{"package":"p","license":"CC0-1.0","files":["*.txt"]}])";

TEST(CorpusRecipe, ReadsWhatItSays) {
  const auto parsed = parse_corpus_recipe(
      R"({"sources":[{"package":"p","version":"1","license":"CC0-1.0","origin":"o","files":["a/*.html"],"format":"html",
          "prose_only":true,"max_bytes":1e6}],"clean":{"min_document_bytes":10},"held_out_one_of":4,
          "chats":[{"name":"c","split":"test","seed":3,"tokens":1000,"gap":[16,32],"num_questions":[2,4],"loss":"all",
          "shares":{"recall":1,"json":2}}]})",
      "data.json");
  ASSERT_TRUE(parsed.is_ok()) << parsed.status().message();
  const CorpusRecipe& recipe = parsed.value();
  ASSERT_EQ(recipe.sources.size(), 1u);
  EXPECT_EQ(recipe.sources[0].format, TextFormat::kHtml);
  EXPECT_EQ(recipe.sources[0].max_bytes, 1000000);
  EXPECT_EQ(recipe.clean.min_document_bytes, 10);
  EXPECT_EQ(recipe.held_out_one_of, 4u);
  ASSERT_EQ(recipe.chats.size(), 1u);
  const ChatSetRecipe& chat = recipe.chats[0];
  EXPECT_EQ(chat.split, ChatSplit::kTest);
  EXPECT_EQ(chat.max_gap_tokens, 32);
  EXPECT_EQ(chat.min_questions, 2);
  EXPECT_TRUE(chat.all_tokens);
  EXPECT_EQ(chat.shares[static_cast<size_t>(ChatFamily::kJson)], 2);
  EXPECT_EQ(chat.shares[static_cast<size_t>(ChatFamily::kGreeting)], 0);
}

TEST(CorpusRecipe, RefusesByName) {
  EXPECT_THAT(error_of("{"), HasSubstr("data.json: expected JSON"));
  for (const char* name : {"../p", "a/b", ".p", ".."}) {
    EXPECT_THAT(error_of(cat(R"({"sources":[{"package":")", name, R"(","license":"l","files":["*"]}]})")),
                HasSubstr(cat("sources[0].package: expected a file name without '/'")));
  }
  EXPECT_THAT(error_of(R"({"sources":[{"package":"p","license":"l","files":["a"]},{"package":"q","license":"l",
                           "files":["a"]},{"package":"p","license":"l","files":["b"]}]})"),
              HasSubstr("sources: expected different names, found \"p\" twice"));
  EXPECT_THAT(error_of(cat("{", kSources, R"(,"held_out_one_of":1e30})")), HasSubstr("held_out_one_of: expected"));
  EXPECT_THAT(error_of("[]"), HasSubstr("expected an object"));
  EXPECT_THAT(error_of("{}"), HasSubstr("sources: expected one or more"));
  EXPECT_THAT(error_of(cat("{", kSources, ",\"colour\":1}")), HasSubstr("colour: unknown key; known are sources"));
  EXPECT_THAT(error_of(R"({"sources":[{"package":"p","license":"l","files":["*"],"size":1}]})"),
              HasSubstr("sources[0].size: unknown key"));
  EXPECT_THAT(error_of(R"({"sources":[{"package":"p","license":"l","files":["*"],"format":"pdf"}]})"),
              HasSubstr("sources[0].format: expected text, html, dictd or wordnet, found \"pdf\""));
  EXPECT_THAT(error_of(R"({"sources":[{"package":"p","files":["*"]}]})"), HasSubstr("sources[0].license"));
  EXPECT_THAT(error_of(cat("{", kSources, R"(,"held_out_one_of":1})")), HasSubstr("held_out_one_of: expected a whole"));
  EXPECT_THAT(error_of(cat("{", kSources, R"(,"chats":[{"name":"c","gap":[9,3]}]})")), HasSubstr("chats[0].gap"));
  EXPECT_THAT(error_of(cat("{", kSources, R"(,"chats":[{"name":"c","tokens":1.5}]})")), HasSubstr("chats[0].tokens"));
  EXPECT_THAT(error_of(cat("{", kSources, R"(,"chats":[{"name":"c","shares":{"recal":1}}]})")),
              HasSubstr("chats[0].shares.recal: unknown key"));
  EXPECT_THAT(error_of(cat("{", kSources, R"(,"chats":[{"name":"c","shares":{}}]})")),
              HasSubstr("chats[0].shares: expected a share above 0"));
}

class CorpusStages : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(input_.path("a/deep"));
    write_bytes(input_.path("a/VERSION"), "1.2-3\nmore\n");
    for (int i = 0; i < 40; ++i) {
      write_bytes(
          input_.path(cat("a/deep/", i, ".txt")),
          cat("Text number ", i, " has a first paragraph of words that say little, but are enough.\n\nAnd a second ",
              "paragraph of text ", i, " follows it, so that a gap can be filled with something.\n"));
    }
    write_bytes(input_.path("a/other.bin"), "no");
    auto parsed = parse_corpus_recipe(
        R"({"sources":[{"package":"a","version_file":"a/VERSION","license":"CC0-1.0","files":["a/*.txt"]}],
            "clean":{"min_document_bytes":20},"held_out_one_of":4,"chat_sample":{"examples":30},"prose_shard_tokens":1500,
            "chats":[{"name":"chat","tokens":30000,"shard_tokens":12000,"gap":[8,64]},
                     {"name":"whole","tokens":3000,"loss":"all","max_document_tokens":700},
                     {"name":"chat-test","split":"test","tokens":3000}]})",
        "data.json");
    ASSERT_TRUE(parsed.is_ok()) << parsed.status().message();
    recipe_ = std::move(parsed).value();
  }

  static void ignore(const std::string&) {}

  TempFolder input_, output_;
  CorpusRecipe recipe_;
};

Tokenizer small_tokenizer(const std::string& texts) {
  BpeTrainer trainer;
  const auto documents = read_text_documents(texts);
  for (const std::string& document : documents.value()) trainer.add_text(document);
  const auto files = make_tokenizer_files(trainer.train({.num_ranks = 400}).value()).value();
  return Tokenizer::from_memory(files.rank_file, files.tokenizer_config_json, files.vocab_size).value();
}

TEST_F(CorpusStages, TextsAreSplitByTheirBytesAndListedInTheManifest) {
  const auto counts = build_texts(recipe_, input_.path(), output_.path(), ignore);
  ASSERT_TRUE(counts.is_ok()) << counts.status().message();
  EXPECT_EQ(counts.value().train_documents + counts.value().held_out_documents, 40);
  const auto train = read_text_documents(output_.path("texts/a.txt")).value();
  const auto held_out = read_text_documents(output_.path("held-out-documents/a.txt")).value();
  EXPECT_EQ(static_cast<int64_t>(train.size()), counts.value().train_documents);
  for (const std::string& text : train) EXPECT_FALSE(is_held_out(text, 4));
  std::string joined;
  for (const std::string& text : held_out) {
    EXPECT_TRUE(is_held_out(text, 4));
    joined += cat(joined.empty() ? "" : "\n", text);
  }
  EXPECT_FALSE(held_out.empty());
  EXPECT_EQ(read_bytes(output_.path("held-out/a.txt")), joined);
  const auto manifest = nlohmann::json::parse(read_bytes(output_.path("manifest.json")));
  EXPECT_EQ(manifest["sources"][0]["version"], "1.2-3");
  EXPECT_EQ(manifest["sources"][0]["documents_out"], 40);
  EXPECT_GT(read_text_documents(output_.path("texts/chat-sample.txt")).value().size(), 30u);
}

TEST_F(CorpusStages, ShardsAreTheSameWhateverTheNumberOfThreads) {
  ASSERT_TRUE(build_texts(recipe_, input_.path(), output_.path(), ignore).is_ok());
  const Tokenizer tokenizer = small_tokenizer(output_.path("texts/chat-sample.txt"));
  const auto one = build_shards(recipe_, output_.path(), tokenizer, 1, ignore);
  ASSERT_TRUE(one.is_ok()) << one.status().message();
  std::map<std::string, std::string> bytes;
  for (const auto& entry : std::filesystem::directory_iterator(output_.path("shards"))) {
    bytes[entry.path().filename().string()] = read_bytes(entry.path().string());
  }
  ASSERT_TRUE(build_shards(recipe_, output_.path(), tokenizer, 3, ignore).is_ok());
  for (const auto& [name, before] : bytes) EXPECT_EQ(read_bytes(output_.path("shards/" + name)), before) << name;
  ASSERT_EQ(one.value().size(), 5u);
  const ShardSetCounts& prose = one.value()[0];
  EXPECT_EQ(prose.tokens, prose.trained_tokens);
  EXPECT_GT(prose.shards, 1);
  for (const ShardSetCounts& set : one.value()) {
    int64_t tokens = 0;
    int64_t trained = 0;
    for (int64_t i = 0; i < set.shards; ++i) {
      const auto shard = TokenShard::open(output_.path(cat("shards/", set.name, "-", i, ".bin")));
      ASSERT_TRUE(shard.is_ok()) << shard.status().message();
      tokens += static_cast<int64_t>(shard.value().num_tokens());
      for (uint64_t t = 0; t < shard.value().num_tokens(); ++t) trained += shard.value().is_trained(t);
    }
    EXPECT_EQ(tokens, set.tokens) << set.name;
    EXPECT_EQ(trained, set.trained_tokens) << set.name;
  }
  const ShardSetCounts& chat = one.value()[2];
  EXPECT_EQ(chat.shards, 3) << "30000 tokens in shards of 12000";
  EXPECT_GE(chat.tokens, 30000);
  EXPECT_LT(chat.trained_tokens, chat.tokens);
  EXPECT_LE(one.value()[3].longest_document, 700);
  EXPECT_EQ(one.value()[3].trained_tokens, one.value()[3].tokens);
}

TEST_F(CorpusStages, FaultsNameWhatIsMissing) {
  BpeTrainer trainer;
  const auto files = make_tokenizer_files(trainer.train({.num_ranks = 256}).value()).value();
  const Tokenizer tokenizer =
      Tokenizer::from_memory(files.rank_file, files.tokenizer_config_json, files.vocab_size).value();
  const auto early = build_shards(recipe_, output_.path(), tokenizer, 1, ignore);
  ASSERT_FALSE(early.is_ok());
  EXPECT_THAT(early.status().message(), HasSubstr("/texts"));
  recipe_.sources[0].files = {"b/*.txt"};
  const auto missing = build_texts(recipe_, input_.path(), output_.path(), ignore);
  ASSERT_FALSE(missing.is_ok());
  EXPECT_THAT(missing.status().message(), HasSubstr("a: expected files below"));
  const auto nowhere = build_texts(recipe_, input_.path("none"), output_.path(), ignore);
  EXPECT_FALSE(nowhere.is_ok());
}

TEST(GapParagraphs, AreOfMiddlingLength) {
  const std::string good(100, 'a');
  const std::vector<std::string> documents = {cat("short\n\n", good, "\n", std::string(700, 'b'), "\n")};
  EXPECT_THAT(gap_paragraphs(documents, 10), ::testing::ElementsAre(good));
  EXPECT_TRUE(gap_paragraphs({}, 10).empty());
}

}  // namespace
}  // namespace tandem::test

#include "corpus/shard_documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/cat.h"
#include "corpus/bpe_trainer.h"
#include "corpus/chat_generator.h"
#include "corpus/corpus_support.h"
#include "corpus/packed_sequences.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;

Tokenizer byte_tokenizer() {
  const auto ranks = BpeTrainer().train({.num_ranks = 256}).value();
  const auto files = make_tokenizer_files(ranks).value();
  return Tokenizer::from_memory(files.rank_file, files.tokenizer_config_json, files.vocab_size).value();
}

// From conversations to targets: what the trainer sees is what the mask says, and nothing of a prompt.
TEST(ShardDocuments, ChatsAndTextsReachTheTargets) {
  const TempFolder folder;
  const Tokenizer tokenizer = byte_tokenizer();
  const ChatGenerator chats({.seed = 4, .max_gap_tokens = 64, .prose = {}, .tokenizer = &tokenizer});
  const std::string path = folder.path("mixed.shard");
  auto writer = TokenShardWriter::create(path, tokenizer.vocab_size(), LossMask::kPerToken);
  ASSERT_TRUE(writer.is_ok());
  std::vector<ChatTokens> expected;
  for (uint64_t i = 0; i < 60; ++i) {
    const ChatExample example = chats.example(chats.family_of(i), ChatSplit::kTrain, i);
    expected.push_back(encode_example(tokenizer, example).value());
    ASSERT_TRUE(add_chat_document(writer.value(), tokenizer, example).is_ok());
    const std::string text = cat("Text ", i);
    ASSERT_TRUE(add_text_document(writer.value(), tokenizer, text).is_ok());
    expected.push_back({tokenizer.encode_control(text + "[EOS]"), {}, 0});
    expected.back().loss.assign(expected.back().ids.size(), 1);
  }
  ASSERT_TRUE(writer.value().finish().is_ok());
  auto dataset = TokenDataset::open(std::span(&path, 1));
  ASSERT_TRUE(dataset.is_ok()) << dataset.status().message();
  auto packed = PackedSequences::create(dataset.value(), 1 << 20, PackMode::kWholeDocuments, 0);
  ASSERT_TRUE(packed.is_ok());
  ASSERT_EQ(packed.value().size(), 1u);
  PackedSequence sequence;
  packed.value().read(0, sequence);
  size_t at = 0;
  for (const ChatTokens& document : expected) {
    for (size_t i = 0; i < document.ids.size(); ++i, ++at) {
      EXPECT_EQ(sequence.tokens[at], document.ids[i].value);
      const bool has_target = i + 1 < document.ids.size() && document.loss[i + 1] != 0;
      EXPECT_EQ(sequence.targets[at], has_target ? document.ids[i + 1].value : kNoTarget);
    }
  }
  EXPECT_EQ(sequence.num_valid, static_cast<int64_t>(at));
}

TEST(ShardDocuments, RefusesATokenizerWithoutAnEnd) {
  const TempFolder folder;
  const auto files = make_tokenizer_files(BpeTrainer().train({.num_ranks = 256}).value()).value();
  const Tokenizer plain = Tokenizer::from_memory(files.rank_file, R"({"added_tokens_decoder":{}})", 512).value();
  auto writer = TokenShardWriter::create(folder.path("x"), 512, LossMask::kPerToken);
  EXPECT_THAT(add_text_document(writer.value(), plain, "x").message(), HasSubstr("[EOS]"));
  const ChatExample example = ChatGenerator({}).example(ChatFamily::kCopy, ChatSplit::kTrain, 0);
  EXPECT_EQ(add_chat_document(writer.value(), plain, example).code(), StatusCode::kUnsupported);
}

// 4000 draws at one of 8: the share's standard deviation is 21 texts; five of them bound it.
TEST(ShardDocuments, HeldOutIsAShareOfTheTexts) {
  int count = 0;
  for (int i = 0; i < 4000; ++i) {
    EXPECT_EQ(is_held_out(cat("text ", i), 8), is_held_out(cat("text ", i), 8));
    count += is_held_out(cat("text ", i), 8);
  }
  EXPECT_NEAR(count, 500, 105);
  EXPECT_TRUE(is_held_out("anything", 1));
}

}  // namespace
}  // namespace tandem::test

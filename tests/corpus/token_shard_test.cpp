#include "corpus/token_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "corpus/corpus_support.h"
#include "corpus/token_shard_writer.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;

struct Document {
  std::vector<TokenId> tokens;
  std::vector<uint8_t> loss;
};

std::vector<Document> random_documents(uint64_t seed, size_t count, int64_t vocab_size, bool with_mask) {
  StableRandom random(seed);
  std::vector<Document> documents(count);
  for (Document& document : documents) {
    const uint64_t size = 1 + random.below(40);
    for (uint64_t i = 0; i < size; ++i) {
      document.tokens.emplace_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab_size))));
      if (with_mask) document.loss.push_back(static_cast<uint8_t>(random.below(2)));
    }
  }
  return documents;
}

void write_shard(const std::string& path, const std::vector<Document>& documents, int64_t vocab_size, LossMask mask) {
  auto writer = TokenShardWriter::create(path, vocab_size, mask);
  ASSERT_TRUE(writer.is_ok()) << writer.status().message();
  for (const Document& document : documents) {
    ASSERT_TRUE(writer.value().add_document(document.tokens, document.loss).is_ok());
  }
  const Status status = writer.value().finish();
  ASSERT_TRUE(status.is_ok()) << status.message();
}

TEST(StreamHash, AnyCutGivesTheSameValue) {
  const std::string text = "The quick brown fox jumps over the lazy dog, twice.";
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); second += 3) {
      StreamHash hash;
      hash.append(text.data(), first);
      hash.append(text.data() + first, second - first);
      hash.append(text.data() + second, text.size() - second);
      EXPECT_EQ(hash.value(), stable_hash(text));
    }
  }
  EXPECT_NE(stable_hash(std::string_view("\0", 1)), stable_hash(""));
  EXPECT_NE(stable_hash(std::string_view("a\0", 2)), stable_hash("a"));
}

TEST(TokenShard, GivesBackWhatWasWritten) {
  const TempFolder folder;
  for (const int64_t vocab_size : {int64_t{300}, int64_t{65536}, int64_t{65537}, int64_t{163840}}) {
    for (const bool with_mask : {false, true}) {
      SCOPED_TRACE(vocab_size);
      const auto documents = random_documents(7, 101, vocab_size, with_mask);
      const std::string path = folder.path("a.shard");
      write_shard(path, documents, vocab_size, with_mask ? LossMask::kPerToken : LossMask::kNone);
      auto opened = TokenShard::open(path);
      ASSERT_TRUE(opened.is_ok()) << opened.status().message();
      const TokenShard& shard = opened.value();
      EXPECT_EQ(shard.vocab_size(), vocab_size);
      EXPECT_EQ(shard.has_loss_mask(), with_mask);
      ASSERT_EQ(shard.num_documents(), documents.size());
      uint64_t t = 0;
      for (size_t d = 0; d < documents.size(); ++d) {
        const size_t size = documents[d].tokens.size();
        EXPECT_EQ(shard.document(d), (TokenRange{t, t + size}));
        for (size_t i = 0; i < size; ++i, ++t) {
          EXPECT_EQ(shard.token(t), documents[d].tokens[i].value);
          EXPECT_EQ(shard.is_trained(t), !with_mask || documents[d].loss[i] != 0);
          EXPECT_EQ(shard.document_of(t), d);
        }
      }
      EXPECT_EQ(shard.num_tokens(), t);
    }
  }
}

TEST(TokenShard, SameDocumentsGiveTheSameBytes) {
  const TempFolder folder;
  const auto documents = random_documents(3, 50, 1000, true);
  write_shard(folder.path("a"), documents, 1000, LossMask::kPerToken);
  write_shard(folder.path("b"), documents, 1000, LossMask::kPerToken);
  EXPECT_EQ(read_bytes(folder.path("a")), read_bytes(folder.path("b")));
}

// Every byte of a small shard decides something or must be zero: changing any is noticed and the file is named.
TEST(TokenShard, RefusesEveryChangedByteAndEveryCut) {
  const TempFolder folder;
  const std::string path = folder.path("good");
  write_shard(path, random_documents(5, 9, 500, true), 500, LossMask::kPerToken);
  const std::string good = read_bytes(path);
  const std::string bad_path = folder.path("damaged.shard");
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << i % 8));
    write_bytes(bad_path, bad);
    const auto opened = TokenShard::open(bad_path);
    ASSERT_FALSE(opened.is_ok()) << "byte " << i;
    EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(opened.status().message(), HasSubstr("damaged.shard"));
  }
  for (size_t size = 0; size < good.size(); size += 5) {
    write_bytes(bad_path, std::string_view(good).substr(0, size));
    const auto opened = TokenShard::open(bad_path);
    ASSERT_FALSE(opened.is_ok()) << "cut at " << size;
    EXPECT_THAT(opened.status().message(), HasSubstr("damaged.shard"));
  }
  EXPECT_EQ(TokenShard::open(folder.path("absent")).status().code(), StatusCode::kNotFound);
}

// A file whose hashes are right and whose contents are wrong, as another program may write it.
TEST(TokenShard, RefusesWrongContentsUnderRightHashes) {
  const TempFolder folder;
  const std::string path = folder.path("forged.shard");
  write_shard(path, random_documents(5, 9, 500, false), 500, LossMask::kNone);
  const std::string good = read_bytes(path);
  TokenShardHeader header;
  std::memcpy(&header, good.data(), sizeof header);
  const auto refusal = [&](auto change) {
    std::string bad = good;
    TokenShardHeader forged = header;
    change(forged, bad);
    StreamHash payload;
    payload.append(bad.data() + sizeof forged, bad.size() - sizeof forged);
    forged.payload_hash = payload.value();
    StreamHash head;
    head.append(&forged, kShardHashedHeaderBytes);
    forged.header_hash = head.value();
    std::memcpy(bad.data(), &forged, sizeof forged);
    write_bytes(path, bad);
    return TokenShard::open(path).status().message();
  };
  EXPECT_EQ(refusal([](auto&, auto&) {}), "");
  EXPECT_THAT(refusal([](auto& h, auto& b) { b[h.tokens_offset + 1] = '\x7f'; }), HasSubstr("token 0: expected an id"));
  EXPECT_THAT(refusal([](auto& h, auto& b) { b[h.documents_offset] = 0; }), HasSubstr("document 0: expected an end"));
  EXPECT_THAT(refusal([](auto& h, auto&) { h.num_documents += 1; }), HasSubstr("bytes of header and sections"));
  EXPECT_THAT(refusal([](auto& h, auto&) { h.num_tokens = uint64_t{1} << 63; }), HasSubstr("documents of a token"));
  EXPECT_THAT(refusal([](auto& h, auto&) { h.mask_offset = 8; }), HasSubstr("offset of the loss mask"));
  EXPECT_THAT(refusal([](auto& h, auto&) { h.flags = 6; }), HasSubstr("unknown flags"));
  EXPECT_THAT(refusal([](auto& h, auto&) { h.version = 2; }), HasSubstr("version: expected 1, found 2"));
  EXPECT_THAT(refusal([](auto& h, auto&) { h.token_bytes = 4; }), HasSubstr("bytes a token: expected 2"));
}

TEST(TokenShardWriter, RefusesBadDocumentsAndLeavesNothingUnfinished) {
  const TempFolder folder;
  const std::string path = folder.path("x.shard");
  const std::vector<TokenId> good = {TokenId(1), TokenId(2)};
  const std::vector<TokenId> outside = {TokenId(1), TokenId(10)};
  const std::vector<TokenId> negative = {TokenId(-1)};
  const std::vector<uint8_t> one = {1};
  {
    auto writer = TokenShardWriter::create(path, 10, LossMask::kPerToken);
    ASSERT_TRUE(writer.is_ok());
    EXPECT_THAT(writer.value().add_document({}).message(), HasSubstr("expected tokens"));
    EXPECT_THAT(writer.value().add_document(good, one).message(), HasSubstr("expected 2 loss mask entries, found 1"));
    const std::vector<uint8_t> two = {1, 0};
    EXPECT_THAT(writer.value().add_document(outside, two).message(), HasSubstr("token 1: expected an id of 0 to 9"));
    EXPECT_THAT(writer.value().add_document(negative, one).message(), HasSubstr("found -1"));
    EXPECT_EQ(writer.value().num_tokens(), 0u);
    EXPECT_THAT(writer.value().finish().message(), HasSubstr("expected documents"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_FALSE(TokenShardWriter::create(path, 0, LossMask::kNone).is_ok());
  EXPECT_FALSE(TokenShardWriter::create(folder.path("no/such/folder"), 10, LossMask::kNone).is_ok());
}

}  // namespace
}  // namespace tandem::test

#include "base/sha256.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(Sha256Test, TheStandardsExamples) {
  EXPECT_EQ(sha256_hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(sha256(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Every length around a block and its padding, in pieces of several sizes, by both forms of the rounds.
TEST(Sha256Test, PiecesAndInstructionsDoNotMatter) {
  std::string text;
  for (int i = 0; i < 300; ++i) text.push_back(static_cast<char>(i * 37 + 11));
  for (size_t length = 0; length <= text.size(); ++length) {
    const std::string_view part = std::string_view(text).substr(0, length);
    Sha256 whole = Sha256::portable();
    whole.add(bytes_of(part));
    const Sha256Digest expected = whole.finish();
    EXPECT_EQ(sha256(part), expected) << length;
    const size_t piece = 1 + length % 71;
    Sha256 pieces;
    for (size_t at = 0; at < length; at += piece) pieces.add(bytes_of(part.substr(at, piece)));
    EXPECT_EQ(pieces.finish(), expected) << length << " in pieces of " << piece;
  }
}

}  // namespace
}  // namespace tandem

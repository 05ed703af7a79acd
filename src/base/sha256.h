// base/sha256.h: SHA-256 (FIPS 180-4), of a text or of a file in pieces. Uses the processor's SHA instructions where it
// has them. Threading: pure; a Sha256 belongs to one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tandem {

using Sha256Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256();
  // Without the processor's SHA instructions, for those that lack them.
  static Sha256 portable();

  void add(std::span<const std::byte> bytes);
  Sha256Digest finish();  // once, at the end

 private:
  using Hash = std::array<uint32_t, 8>;
  using AddBlocks = void (*)(Hash& hash, const uint8_t* blocks, size_t count);
  explicit Sha256(AddBlocks add_blocks);
  static void add_blocks_portable(Hash& hash, const uint8_t* blocks, size_t count);
  static void add_blocks_sha_ni(Hash& hash, const uint8_t* blocks, size_t count);
  static bool has_sha_instructions();

  AddBlocks add_blocks_;
  Hash hash_;
  uint64_t num_bytes_ = 0;
  std::array<uint8_t, 64> pending_ = {};  // the first num_bytes_ % 64 of a block
};

Sha256Digest sha256(std::string_view text);

// 64 lower-case hexadecimal digits.
std::string sha256_hex(const Sha256Digest& digest);

}  // namespace tandem

// corpus/token_shard_format.h: the layout of a token shard, the file between tokenization and training.
//
//   little-endian; every section begins at a multiple of 8 bytes, the gaps are zero
//     0   char[8]  "TNDMSHRD"
//     8   u32      version, 1
//    12   u32      header bytes, 96
//    16   u32      bytes a token: 2 (vocabulary up to 65536) or 4
//    20   u32      flags: bit 0, a loss mask is present; all others zero
//    24   u64      vocabulary size: every token id is below it
//    32   u64      T, number of tokens
//    40   u64      D, number of documents
//    48   u64      offset of the tokens:      u16 or u32 [T]
//    56   u64      offset of the document ends: u64 [D], ascending, the last is T. Document d is the tokens
//                  [end[d-1], end[d]); none is empty
//    64   u64      offset of the loss mask:   bit t & 7 of byte t / 8 is 1 when predicting token t is trained; 0: none,
//                  every token is trained
//    72   u64      file bytes
//    80   u64      StreamHash (stable_random.h) of the bytes [96, file bytes)
//    88   u64      StreamHash of the bytes [0, 88)
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace tandem {

static_assert(std::endian::native == std::endian::little, "shards are mapped as they are");

inline constexpr std::string_view kShardMagic = "TNDMSHRD";
inline constexpr uint32_t kShardVersion = 1;
inline constexpr uint32_t kShardHasLossMask = 1;

struct TokenShardHeader {
  char magic[8] = {};
  uint32_t version = kShardVersion;
  uint32_t header_bytes = 96;
  uint32_t token_bytes = 0;
  uint32_t flags = 0;
  uint64_t vocab_size = 0;
  uint64_t num_tokens = 0;
  uint64_t num_documents = 0;
  uint64_t tokens_offset = 0;
  uint64_t documents_offset = 0;
  uint64_t mask_offset = 0;
  uint64_t file_bytes = 0;
  uint64_t payload_hash = 0;
  uint64_t header_hash = 0;
};
static_assert(sizeof(TokenShardHeader) == 96);

inline constexpr uint64_t kShardHashedHeaderBytes = 88;

}  // namespace tandem

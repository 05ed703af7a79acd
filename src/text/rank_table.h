// text/rank_table.h: the byte strings of a tiktoken rank file and the way back from bytes to rank.
//
//   File: one `base64(bytes) SPACE rank` a line, LF or CRLF, blank lines ignored; ranks dense 0..n-1 in any order.
//   Look-up: open addressing over XXH3 of the bytes; single bytes and pairs of bytes, where a merge starts, are direct
//   tables. Immutable after parse: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem {

class RankTable {
 public:
  static constexpr int32_t kNoRank = INT32_MAX;  // sorts behind every rank

  // `origin` names the file in messages.
  static Result<RankTable> parse(std::string_view file_text, std::string_view origin);

  int32_t num_ranks() const { return static_cast<int32_t>(offsets_.size()) - 1; }
  size_t max_token_bytes() const { return max_token_bytes_; }
  std::string_view bytes(int32_t rank) const {
    return std::string_view(bytes_).substr(offsets_[rank], offsets_[rank + 1] - offsets_[rank]);
  }

  // kNoRank when the bytes are no token.
  int32_t find(std::string_view bytes) const;
  int32_t single(uint8_t byte) const { return singles_[byte]; }
  int32_t pair(uint8_t first, uint8_t second) const { return pairs_[size_t{first} << 8 | second]; }

 private:
  struct Slot {
    uint32_t tag = 0;   // upper hash bits: most misses end without touching the bytes
    int32_t rank = -1;  // -1: empty
  };

  RankTable() = default;
  Status store(std::vector<std::string> tokens, std::string_view origin);
  Status index(std::string_view origin);

  std::string bytes_;              // all tokens, by rank
  std::vector<uint32_t> offsets_;  // num_ranks + 1
  std::vector<Slot> slots_;        // power of two, at most half full
  std::vector<int32_t> singles_;   // 256
  std::vector<int32_t> pairs_;     // 65536
  size_t max_token_bytes_ = 0;
};

}  // namespace tandem

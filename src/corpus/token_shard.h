// corpus/token_shard.h: a token shard (token_shard_format.h), mapped for reading.
//
//   What open() has accepted needs no further check: sizes, offsets, hashes, every token id and every document end were
//   looked at. Needs base/ and weights/mapped_file only. Immutable: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/ids.h"
#include "base/result.h"
#include "corpus/token_shard_format.h"
#include "weights/mapped_file.h"

namespace tandem {

struct TokenRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t size() const { return end - begin; }
  bool operator==(const TokenRange&) const = default;
};

class TokenShard {
 public:
  // The message of a refusal names the file and what is wrong in it. kNotFound when there is no such file.
  static Result<TokenShard> open(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t vocab_size() const { return static_cast<int64_t>(header_.vocab_size); }
  uint64_t num_tokens() const { return header_.num_tokens; }
  uint64_t num_documents() const { return header_.num_documents; }
  bool has_loss_mask() const { return (header_.flags & kShardHasLossMask) != 0; }

  // The tokens of one document; d < num_documents().
  TokenRange document(uint64_t d) const;
  // The document that holds a token; t < num_tokens(). O(log D).
  uint64_t document_of(uint64_t t) const;

  // t < num_tokens(), and whole ranges inside it: TANDEM_CHECKed.
  int32_t token(uint64_t t) const;
  bool is_trained(uint64_t t) const;  // true everywhere without a mask
  void read_tokens(uint64_t first, std::span<int32_t> out) const;

 private:
  TokenShard() = default;
  Status check_header() const;
  Status check_payload() const;
  template <class T>
  T load(uint64_t offset) const;

  std::string path_;
  MappedFile file_;
  TokenShardHeader header_;
};

}  // namespace tandem

// corpus/token_shard_writer.h: writes a token shard (token_shard_format.h) as its documents come. The file appears
// complete, at finish(), or not at all. Memory: the document ends and the mask bits, the tokens go to the disk.
// Needs base/ and weights/atomic_file only. Threading: one owner.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "corpus/stable_random.h"
#include "weights/atomic_file.h"

namespace tandem {

enum class LossMask { kNone, kPerToken };

class TokenShardWriter {
 public:
  static Result<TokenShardWriter> create(const std::string& path, int64_t vocab_size, LossMask mask);

  // `loss`: empty without a mask, else one 0 or 1 a token. kInvalidArgument on an empty document, an id outside the
  // vocabulary, or a mask of another length; nothing of that document is written then.
  Status add_document(std::span<const TokenId> tokens, std::span<const uint8_t> loss = {});
  // Writes the rest and gives the file its name. kInvalidArgument without a document. Call it once.
  Status finish();

  LossMask mask() const { return mask_; }
  uint64_t num_tokens() const { return num_tokens_; }
  uint64_t num_documents() const { return document_ends_.size(); }

 private:
  TokenShardWriter(AtomicFile file, int64_t vocab_size, LossMask mask);
  Status append_bytes(const void* bytes, size_t size);
  Status flush();
  Status pad_to_section();

  AtomicFile file_;
  int64_t vocab_size_;
  LossMask mask_;
  uint32_t token_bytes_;
  uint64_t num_tokens_ = 0;
  std::vector<uint64_t> document_ends_;
  std::vector<uint8_t> mask_bits_;
  std::vector<std::byte> buffer_;
  uint64_t written_bytes_ = 0;  // of the file, the buffer not counted
  StreamHash hash_;
};

}  // namespace tandem

#include "corpus/token_shard_writer.h"

#include <algorithm>
#include <cstring>

#include "base/cat.h"
#include "corpus/token_shard_format.h"

namespace tandem {
namespace {

constexpr size_t kBufferBytes = 1 << 20;

}  // namespace

Result<TokenShardWriter> TokenShardWriter::create(const std::string& path, int64_t vocab_size, LossMask mask) {
  if (vocab_size < 1 || vocab_size > INT32_MAX) {
    return Status::invalid(cat(path, ": expected a vocabulary size of 1 to ", INT32_MAX, ", found ", vocab_size));
  }
  auto file = AtomicFile::create(path);
  if (!file.is_ok()) return file.status();
  return TokenShardWriter(std::move(file).value(), vocab_size, mask);
}

TokenShardWriter::TokenShardWriter(AtomicFile file, int64_t vocab_size, LossMask mask)
    : file_(std::move(file)),
      vocab_size_(vocab_size),
      mask_(mask),
      token_bytes_(vocab_size <= 65536 ? 2 : 4),
      written_bytes_(sizeof(TokenShardHeader)) {}

Status TokenShardWriter::flush() {
  if (buffer_.empty()) return Status::ok();
  TANDEM_RETURN_IF_ERROR(file_.write_at(written_bytes_, buffer_));
  hash_.append(buffer_.data(), buffer_.size());
  written_bytes_ += buffer_.size();
  buffer_.clear();
  return Status::ok();
}

Status TokenShardWriter::append_bytes(const void* bytes, size_t size) {
  const auto* in = static_cast<const std::byte*>(bytes);
  buffer_.insert(buffer_.end(), in, in + size);
  return buffer_.size() < kBufferBytes ? Status::ok() : flush();
}

Status TokenShardWriter::pad_to_section() {
  constexpr uint64_t kZero = 0;
  const uint64_t odd = (written_bytes_ + buffer_.size()) % 8;
  return odd == 0 ? Status::ok() : append_bytes(&kZero, 8 - odd);
}

Status TokenShardWriter::add_document(std::span<const TokenId> tokens, std::span<const uint8_t> loss) {
  const auto where = [&] { return cat(file_.path(), ": document ", num_documents()); };
  if (tokens.empty()) return Status::invalid(cat(where(), ": expected tokens, found none"));
  const size_t expected = mask_ == LossMask::kPerToken ? tokens.size() : 0;
  if (loss.size() != expected) {
    return Status::invalid(cat(where(), ": expected ", expected, " loss mask entries, found ", loss.size()));
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].value < 0 || tokens[i].value >= vocab_size_) {
      return Status::invalid(
          cat(where(), ", token ", i, ": expected an id of 0 to ", vocab_size_ - 1, ", found ", tokens[i].value));
    }
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<uint32_t>(tokens[i].value);
    TANDEM_RETURN_IF_ERROR(append_bytes(&id, token_bytes_));  // the low bytes come first
    if (mask_ == LossMask::kNone) continue;
    const uint64_t t = num_tokens_ + i;
    if (t % 8 == 0) mask_bits_.push_back(0);
    if (loss[i] != 0) mask_bits_.back() = static_cast<uint8_t>(mask_bits_.back() | 1u << t % 8);
  }
  num_tokens_ += tokens.size();
  document_ends_.push_back(num_tokens_);
  return Status::ok();
}

Status TokenShardWriter::finish() {
  if (document_ends_.empty()) return Status::invalid(cat(file_.path(), ": expected documents, found none"));
  TokenShardHeader header;
  std::copy(kShardMagic.begin(), kShardMagic.end(), header.magic);
  header.token_bytes = token_bytes_;
  header.vocab_size = static_cast<uint64_t>(vocab_size_);
  header.num_tokens = num_tokens_;
  header.num_documents = num_documents();
  header.tokens_offset = sizeof header;
  TANDEM_RETURN_IF_ERROR(pad_to_section());
  header.documents_offset = written_bytes_ + buffer_.size();
  TANDEM_RETURN_IF_ERROR(append_bytes(document_ends_.data(), document_ends_.size() * sizeof(uint64_t)));
  if (mask_ == LossMask::kPerToken) {
    header.flags = kShardHasLossMask;
    header.mask_offset = written_bytes_ + buffer_.size();
    TANDEM_RETURN_IF_ERROR(append_bytes(mask_bits_.data(), mask_bits_.size()));
    TANDEM_RETURN_IF_ERROR(pad_to_section());
  }
  TANDEM_RETURN_IF_ERROR(flush());
  header.file_bytes = written_bytes_;
  header.payload_hash = hash_.value();
  StreamHash header_hash;
  header_hash.append(&header, kShardHashedHeaderBytes);
  header.header_hash = header_hash.value();
  TANDEM_RETURN_IF_ERROR(file_.write_at(0, std::as_bytes(std::span(&header, 1))));
  return file_.publish();
}

}  // namespace tandem

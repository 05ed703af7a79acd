#include "corpus/token_shard.h"

#include <cstring>

#include "base/cat.h"
#include "base/check.h"
#include "corpus/stable_random.h"

namespace tandem {
namespace {

constexpr uint64_t kMaxCount = uint64_t{1} << 48;  // far above any file; products with 8 stay inside 64 bits

constexpr uint64_t round_up_8(uint64_t n) { return (n + 7) / 8 * 8; }

}  // namespace

template <class T>
T TokenShard::load(uint64_t offset) const {
  T value;
  std::memcpy(&value, file_.bytes().data() + offset, sizeof value);
  return value;
}

Result<TokenShard> TokenShard::open(const std::string& path) {
  auto file = MappedFile::open(path);
  if (!file.is_ok()) return file.status();
  TokenShard shard;
  shard.path_ = path;
  shard.file_ = std::move(file).value();
  const uint64_t file_bytes = shard.file_.file_bytes();
  if (file_bytes < sizeof shard.header_) {
    return Status::invalid(
        cat(path, ": expected a token shard's header of ", sizeof shard.header_, " bytes, file has ", file_bytes));
  }
  shard.header_ = shard.load<TokenShardHeader>(0);
  TANDEM_RETURN_IF_ERROR(shard.check_header());
  TANDEM_RETURN_IF_ERROR(shard.check_payload());
  return shard;
}

Status TokenShard::check_header() const {
  const auto expect = [&](std::string_view what, uint64_t expected, uint64_t found) {
    if (expected == found) return Status::ok();
    return Status::invalid(cat(path_, ": ", what, ": expected ", expected, ", found ", found));
  };
  if (std::string_view(header_.magic, sizeof header_.magic) != kShardMagic) {
    return Status::invalid(cat(path_, ": expected a token shard, which begins with ", kShardMagic));
  }
  TANDEM_RETURN_IF_ERROR(expect("version", kShardVersion, header_.version));
  StreamHash hash;
  hash.append(&header_, kShardHashedHeaderBytes);
  TANDEM_RETURN_IF_ERROR(expect("hash of the header", header_.header_hash, hash.value()));
  TANDEM_RETURN_IF_ERROR(expect("file bytes", header_.file_bytes, file_.file_bytes()));
  TANDEM_RETURN_IF_ERROR(expect("header bytes", sizeof header_, header_.header_bytes));
  TANDEM_RETURN_IF_ERROR(expect("unknown flags", 0, header_.flags & ~kShardHasLossMask));
  if (header_.vocab_size < 1 || header_.vocab_size > INT32_MAX) {
    return Status::invalid(cat(path_, ": vocabulary size: expected 1 to ", INT32_MAX, ", found ", header_.vocab_size));
  }
  TANDEM_RETURN_IF_ERROR(expect("bytes a token", header_.vocab_size <= 65536 ? 2 : 4, header_.token_bytes));
  if (header_.num_tokens < 1 || header_.num_tokens > kMaxCount || header_.num_documents < 1 ||
      header_.num_documents > header_.num_tokens) {
    return Status::invalid(cat(path_, ": expected documents of a token or more each, found ", header_.num_documents,
                               " documents and ", header_.num_tokens, " tokens"));
  }
  const uint64_t documents_offset = round_up_8(sizeof header_ + header_.num_tokens * header_.token_bytes);
  const uint64_t documents_end = documents_offset + header_.num_documents * 8;
  const uint64_t mask_bytes = has_loss_mask() ? round_up_8((header_.num_tokens + 7) / 8) : 0;
  TANDEM_RETURN_IF_ERROR(expect("offset of the tokens", sizeof header_, header_.tokens_offset));
  TANDEM_RETURN_IF_ERROR(expect("offset of the document ends", documents_offset, header_.documents_offset));
  TANDEM_RETURN_IF_ERROR(expect("offset of the loss mask", has_loss_mask() ? documents_end : 0, header_.mask_offset));
  return expect("bytes of header and sections", documents_end + mask_bytes, header_.file_bytes);
}

Status TokenShard::check_payload() const {
  StreamHash hash;
  hash.append(file_.bytes().data() + sizeof header_, header_.file_bytes - sizeof header_);
  if (hash.value() != header_.payload_hash) {
    return Status::invalid(cat(path_, ": hash of the contents: expected ", header_.payload_hash, ", found ",
                               hash.value(), ": the file is damaged"));
  }
  uint64_t begin = 0;
  for (uint64_t d = 0; d < header_.num_documents; ++d) {
    const auto end = load<uint64_t>(header_.documents_offset + d * 8);
    if (end <= begin || end > header_.num_tokens) {
      return Status::invalid(cat(path_, ": document ", d, ": expected an end of ", begin + 1, " to ",
                                 header_.num_tokens, ", found ", end));
    }
    begin = end;
  }
  if (begin != header_.num_tokens) {
    return Status::invalid(
        cat(path_, ": expected the last document to end at token ", header_.num_tokens, ", found ", begin));
  }
  for (uint64_t t = 0; t < header_.num_tokens; ++t) {
    const auto id = static_cast<uint32_t>(token(t));
    if (id >= header_.vocab_size) {
      return Status::invalid(
          cat(path_, ": token ", t, ": expected an id of 0 to ", header_.vocab_size - 1, ", found ", id));
    }
  }
  return Status::ok();
}

TokenRange TokenShard::document(uint64_t d) const {
  TANDEM_CHECK(d < header_.num_documents, "a document of the shard");
  return {d == 0 ? 0 : load<uint64_t>(header_.documents_offset + (d - 1) * 8),
          load<uint64_t>(header_.documents_offset + d * 8)};
}

uint64_t TokenShard::document_of(uint64_t t) const {
  TANDEM_CHECK(t < header_.num_tokens, "a token of the shard");
  uint64_t low = 0;
  for (uint64_t high = header_.num_documents - 1; low < high;) {
    const uint64_t middle = low + (high - low) / 2;
    if (load<uint64_t>(header_.documents_offset + middle * 8) > t) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

int32_t TokenShard::token(uint64_t t) const {
  TANDEM_CHECK(t < header_.num_tokens, "a token of the shard");
  const uint64_t offset = header_.tokens_offset + t * header_.token_bytes;
  return header_.token_bytes == 2 ? int32_t{load<uint16_t>(offset)} : static_cast<int32_t>(load<uint32_t>(offset));
}

bool TokenShard::is_trained(uint64_t t) const {
  TANDEM_CHECK(t < header_.num_tokens, "a token of the shard");
  return !has_loss_mask() || (load<uint8_t>(header_.mask_offset + t / 8) >> t % 8 & 1) != 0;
}

void TokenShard::read_tokens(uint64_t first, std::span<int32_t> out) const {
  TANDEM_CHECK(first <= header_.num_tokens && out.size() <= header_.num_tokens - first, "tokens of the shard");
  for (size_t i = 0; i < out.size(); ++i) out[i] = token(first + i);
}

}  // namespace tandem

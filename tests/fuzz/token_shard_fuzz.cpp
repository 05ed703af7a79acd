// libFuzzer: any bytes as a token shard. The input is tried as it is, and again with both hashes made right, so that
// the checks behind them are reached. What is accepted must be sound: documents cover the tokens, every id is in the
// vocabulary, every look-up ends.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "corpus/stable_random.h"
#include "corpus/token_shard.h"

namespace {

using namespace tandem;

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const TokenShard& shard) {
  require(shard.num_tokens() > 0 && shard.num_documents() > 0);
  uint64_t covered = 0;
  for (uint64_t d = 0; d < shard.num_documents(); ++d) {
    const TokenRange range = shard.document(d);
    require(range.begin == covered && range.end > range.begin && range.end <= shard.num_tokens());
    require(shard.document_of(range.begin) == d && shard.document_of(range.end - 1) == d);
    covered = range.end;
  }
  require(covered == shard.num_tokens());
  std::vector<int32_t> tokens(static_cast<size_t>(shard.num_tokens()));
  shard.read_tokens(0, tokens);
  for (uint64_t t = 0; t < shard.num_tokens(); ++t) {
    require(tokens[t] >= 0 && tokens[t] < shard.vocab_size() && tokens[t] == shard.token(t));
    require(shard.has_loss_mask() || shard.is_trained(t));
  }
}

void open_bytes(const std::vector<uint8_t>& bytes) {
  static const int fd = memfd_create("token_shard", 0);
  require(fd >= 0 && ftruncate(fd, 0) == 0);
  require(pwrite(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  const auto shard = TokenShard::open("/proc/self/fd/" + std::to_string(fd));
  if (shard.is_ok()) {
    check(shard.value());
  } else {
    require(!shard.status().message().empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint8_t> bytes(data, data + size);
  open_bytes(bytes);
  TokenShardHeader header;
  if (size < sizeof header) return 0;
  std::memcpy(&header, data, sizeof header);
  std::copy(kShardMagic.begin(), kShardMagic.end(), header.magic);
  header.file_bytes = size;
  StreamHash payload;
  payload.append(data + sizeof header, size - sizeof header);
  header.payload_hash = payload.value();
  StreamHash front;
  front.append(&header, kShardHashedHeaderBytes);
  header.header_hash = front.value();
  std::memcpy(bytes.data(), &header, sizeof header);
  open_bytes(bytes);
  return 0;
}

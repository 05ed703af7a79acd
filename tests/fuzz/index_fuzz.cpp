// libFuzzer: any bytes as model.safetensors.index.json. Two readings of one text must agree, and a shard name that is
// accepted never leaves the folder.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "weights/mapped_file.h"
#include "weights/shard_index.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

struct Reading {
  tandem::ShardIndexSummary summary;
  uint64_t hash = 0;
  int64_t faults = 0;
};

Reading read(std::span<const std::byte> json) {
  Reading reading;
  tandem::FaultList faults;
  const auto add = [&](std::string_view text) {
    for (const char c : text) reading.hash = (reading.hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  };
  reading.summary = tandem::parse_shard_index(
      json,
      [&](std::string_view tensor, std::string_view shard) {
        add(tensor);
        add(shard);
        require(!tandem::is_safe_shard_name(shard) ||
                (shard.find('/') == std::string_view::npos && shard != ".." && !shard.empty()));
      },
      faults);
  reading.faults = faults.count();
  return reading;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::byte> json(size + tandem::MappedFile::kPadding);
  std::copy_n(std::as_bytes(std::span(data, size)).begin(), size, json.begin());
  const auto text = std::span<const std::byte>(json).first(size);
  const Reading first = read(text);
  const Reading second = read(text);
  require(first.hash == second.hash && first.faults == second.faults);
  require(first.summary.total_size == second.summary.total_size);
  require(first.summary.readable == (first.faults == 0));
  return 0;
}

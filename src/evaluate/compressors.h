// evaluate/compressors.h: how small general compressors make a text: what a language model's bits per byte stand
// beside.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

struct CompressedSize {
  std::string command;            // as one would type it
  std::optional<uint64_t> bytes;  // with the container's own overhead
  std::string reason;             // why there is no number
};

// `xz -9e` and `zstd -19 --long`, run as programs.
std::vector<CompressedSize> compress_with_programs(std::string_view text);

}  // namespace tandem

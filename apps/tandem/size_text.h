// apps/tandem/size_text.h: sizes on a command line: "500MB", "4GiB", "1000000".
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tandem::app {

// A positive number of bytes; nothing when the text is none.
std::optional<uint64_t> parse_size(std::string_view text);

}  // namespace tandem::app

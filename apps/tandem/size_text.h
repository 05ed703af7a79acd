// apps/tandem/size_text.h: sizes on a command line: "500MB", "4GiB", "1000000".
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/result.h"

namespace tandem::app {

// A positive number of bytes; nothing when the text is none.
std::optional<uint64_t> parse_size(std::string_view text);
// The value of a flag, or the refusal that names it.
Result<int64_t> size_flag(std::string_view name, std::string_view text);

}  // namespace tandem::app

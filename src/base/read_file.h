// base/read_file.h: a whole file into memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem {

// `what` says in messages what the path should have been ("a tokenizer file"). kNotFound when nothing is there,
// kInvalidArgument for anything but a regular file or more than max_bytes, kIo when the system refuses.
Result<std::string> read_file(const std::string& path, std::string_view what, int64_t max_bytes = INT64_MAX);

}  // namespace tandem

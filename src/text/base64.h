// text/base64.h: RFC 4648 base64, standard alphabet, padding required.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tandem {

// Nothing when `text` is not base64: a wrong character, a wrong length, misplaced padding, or padding bits that are not
// 0.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace tandem

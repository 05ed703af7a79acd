// text/reply_json.h: whether the text of an argument is JSON and may be copied as it stands. Part of reply_parser.h.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

// The grammar of RFC 8259, whatever the size of a number and the depth of nesting; O(n), without recursion. `text` is
// valid UTF-8.
bool is_json_text(std::string_view text);

// `text` with what a JSON string must escape escaped, without the quotes around it. Works piece by piece.
std::string json_escaped(std::string_view text);

// The bytes of a token as JSON: text, or a list of numbers when they are no whole characters.
std::string piece_json(std::string_view bytes);

}  // namespace tandem

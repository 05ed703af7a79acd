// text/json_format.h: writing JSON exactly as the reference's Python does, since every byte of it is prompt text.
//
//   Non-ASCII stays; escaped are only `"`, `\` and control characters below U+0020 (\n \r \t \b \f, else \u00xx).
//   Stateless: any thread.
#pragma once

#include <string>
#include <string_view>

#include "text/json_value.h"

namespace tandem {

// Tool declarations and schemas of K3: every object sorted by key in code point order, separators `,` and `:`.
std::string format_json_sorted(const JsonValue& value);

// Argument values, and everything of the older formats: source order, separators `, ` and `: `.
std::string format_json_spaced(const JsonValue& value);

// Python's repr of a finite float: shortest digits that round-trip; exponent form below 1e-4 and from 1e16 on.
std::string python_float(double value);

}  // namespace tandem

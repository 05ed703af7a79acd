// server/http_target.h: the target of a request line, taken apart and checked. Pure functions: any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem {

struct HttpTarget {
  std::string path;   // percent-decoded, begins with '/', valid UTF-8 without control characters; or "*"
  std::string query;  // as sent, without '?'
};

// The forms "/path?query", "http://host/path?query" and "*". kInvalidArgument: anything else, a '%' without two
// hexadecimal digits, or bytes that are not UTF-8, in either part. A fragment is dropped.
Result<HttpTarget> parse_http_target(std::string_view target);

// "%41+b" -> "A+b". kInvalidArgument as above; `what` names the text in the message.
Result<std::string> percent_decode(std::string_view text, std::string_view what);

}  // namespace tandem

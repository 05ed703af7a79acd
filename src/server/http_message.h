// server/http_message.h: the bytes of an answer: status line, headers, chunks, and errors in OpenAI's shape. Pure
// functions: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http_exchange.h"

namespace tandem {

// {"error":{"message","type","param":null,"code"}} with the type that belongs to the status; no code: null.
HttpResponse http_error(int status, std::string_view message, std::string_view code = "");

struct HttpHeadStyle {
  int version = 11;  // of the request: 10 or 11
  bool keep_alive = true;
  std::optional<int64_t> body_bytes;  // none: chunked, or ended by closing for a client of HTTP/1.0
  std::string cors_origin;            // "*", an origin, or "": no CORS headers
  std::string request_id;             // x-request-id, unless the response has one
};

// Status line and headers, with the empty line. A header with a line break or another control character in it is left
// out: nothing that came from outside can add headers or a second answer.
std::string http_head(const HttpResponse& response, const HttpHeadStyle& style);

void append_http_chunk(std::string& out, std::string_view data);  // nothing for empty data: that would be the end
inline constexpr std::string_view kHttpLastChunk = "0\r\n\r\n";

// The answer to OPTIONS: 204 and what a page of another origin may do.
HttpResponse http_preflight(const HttpRequest& request, const std::string& cors_origin);

std::string to_lower_ascii(std::string_view text);

}  // namespace tandem

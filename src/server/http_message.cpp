#include "server/http_message.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>

#include "base/cat.h"
#include "server/api_error.h"

namespace tandem {
namespace {

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 411: return "Length Required";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 422: return "Unprocessable Content";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return "Status";
  }
}

std::string_view error_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 404: return "not_found_error";
    case 408:
    case 504: return "timeout_error";
    case 429: return "rate_limit_error";
    case 503: return "unavailable_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

bool is_token(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kMarks.find(c) != std::string_view::npos;
  });
}

bool has_control(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\t') || byte == 0x7f;
  });
}

void append_header(std::string& out, std::string_view name, std::string_view value) {
  if (!is_token(name) || has_control(value)) return;
  out.append(name).append(": ").append(value).append("\r\n");
}

std::string http_date() {
  const std::time_t seconds = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&seconds, &utc);
  std::array<char, 40> text = {};
  const size_t size = std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &utc);
  return {text.data(), size};
}

// Whether the server writes this header itself.
bool is_own_header(std::string_view lower_case_name) {
  return lower_case_name == "content-length" || lower_case_name == "transfer-encoding" ||
         lower_case_name == "connection" || lower_case_name == "content-type" || lower_case_name == "date";
}

void append_framing(std::string& out, int status, const HttpHeadStyle& style) {
  if (status != 204 && status != 304) {
    if (style.body_bytes) {
      append_header(out, "Content-Length", cat(*style.body_bytes));
    } else if (style.version >= 11) {
      append_header(out, "Transfer-Encoding", "chunked");
    }
  }
  if (!style.keep_alive) {
    append_header(out, "Connection", "close");
  } else if (style.version < 11) {
    append_header(out, "Connection", "keep-alive");
  }
}

}  // namespace

std::string to_lower_ascii(std::string_view text) {
  std::string out{text};
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return out;
}

HttpResponse http_error(int status, std::string_view message, std::string_view code) {
  ApiError error;
  error.status = status;
  error.type = error_type(status);
  error.message = message;
  if (!code.empty()) error.code = std::string(code);
  return error_response(error);
}

std::string http_head(const HttpResponse& response, const HttpHeadStyle& style) {
  std::string out = cat("HTTP/1.1 ", response.status, " ", reason_phrase(response.status), "\r\n");
  append_header(out, "Date", http_date());
  if (response.status != 204 && !response.content_type.empty()) {
    append_header(out, "Content-Type", response.content_type);
  }
  append_framing(out, response.status, style);
  bool has_request_id = false;
  for (const auto& [name, value] : response.headers) {
    const std::string lower = to_lower_ascii(name);
    if (is_own_header(lower)) continue;
    has_request_id = has_request_id || lower == "x-request-id";
    append_header(out, name, value);
  }
  if (!has_request_id && !style.request_id.empty()) append_header(out, "X-Request-Id", style.request_id);
  if (!style.cors_origin.empty()) {
    append_header(out, "Access-Control-Allow-Origin", style.cors_origin);
    append_header(out, "Access-Control-Expose-Headers", "*");
    if (style.cors_origin != "*") append_header(out, "Vary", "Origin");
  }
  return out.append("\r\n");
}

void append_http_chunk(std::string& out, std::string_view data) {
  if (data.empty()) return;
  std::array<char, 16> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), data.size(), 16).ptr;
  out.append(digits.data(), end).append("\r\n").append(data).append("\r\n");
}

HttpResponse http_preflight(const HttpRequest& request, const std::string& cors_origin) {
  HttpResponse response;
  response.status = 204;
  response.content_type.clear();
  if (cors_origin.empty()) {
    response.headers = {{"Allow", "GET, HEAD, POST, OPTIONS"}};
    return response;
  }
  std::string allowed = "authorization, content-type, x-api-key, anthropic-version";
  // Client libraries add headers of their own, each version others: what a page asks for it may send.
  if (const auto wanted = request.header("access-control-request-headers"); wanted && wanted->size() < 2048) {
    std::string_view rest = *wanted;
    while (!rest.empty()) {
      const size_t comma = std::min(rest.find(','), rest.size());
      std::string_view name = rest.substr(0, comma);
      rest.remove_prefix(std::min(comma + 1, rest.size()));
      while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
      while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
      if (is_token(name)) allowed.append(", ").append(name);
    }
  }
  response.headers = {{"Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS"},
                      {"Access-Control-Allow-Headers", allowed},
                      {"Access-Control-Max-Age", "86400"}};
  return response;
}

}  // namespace tandem

// Any bytes as HTTP requests, in pieces of any size: never a crash, every refusal is a 4xx with an error's body, what
// is accepted keeps the limits and the contract of HttpRequest, and the pieces do not matter: other cuts give the same.
//
//   Input: a byte that seeds the sizes of the pieces, then the stream.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "server/http_request_reader.h"

namespace {

using namespace tandem;

constexpr HttpReadLimits kLimits = {1024, 4096};

void check_request(const HttpRequest& request, std::string_view input) {
  TANDEM_CHECK(!request.method.empty() && request.method != "HEAD", "a method is known, and HEAD says GET");
  TANDEM_CHECK(request.path == "*" || request.path.substr(0, 1) == "/", "a path begins with '/'");
  TANDEM_CHECK(is_valid_utf8(request.path), "a path is UTF-8");
  TANDEM_CHECK(request.path.find('\0') == std::string::npos, "a path has no zero byte");
  TANDEM_CHECK(static_cast<int64_t>(request.body.size()) <= kLimits.max_body_bytes, "a body keeps the limit");
  TANDEM_CHECK(input.size() < (size_t{64} << 10), "what waits is bounded");
  for (const auto& [name, value] : request.headers) {
    TANDEM_CHECK(value.find('\n') == std::string::npos, "a header is one line");
    TANDEM_CHECK(std::none_of(name.begin(), name.end(), [](char c) { return c >= 'A' && c <= 'Z'; }), "lower case");
  }
}

std::vector<HttpRequest> read_all(std::string_view stream, uint32_t seed) {
  std::vector<HttpRequest> requests;
  std::string input;
  size_t given = 0;
  HttpRequestReader reader(kLimits);
  for (;;) {
    const HttpReadState state = reader.feed(input);
    reader.take_expects_continue();
    if (state == HttpReadState::kRefused) {
      const int status = reader.refusal().status;
      TANDEM_CHECK(status >= 400 && status < 500, "a broken message is the client's fault");
      TANDEM_CHECK(reader.refusal().body.substr(0, 10) == "{\"error\":{", "in OpenAI's shape");
      return requests;
    }
    if (state == HttpReadState::kDone) {
      requests.push_back(reader.take_request());
      check_request(requests.back(), input);
      reader = HttpRequestReader(kLimits);
      if (!input.empty()) continue;
    }
    if (given == stream.size()) return requests;
    seed = seed * 1664525u + 1013904223u;
    const size_t size = 1 + (seed >> 24) % 64;
    const std::string_view piece = stream.substr(given, size);
    input += piece;
    given += piece.size();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view stream(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto pieces = read_all(stream, data[0]);
  const auto others = read_all(stream, data[0] + 256u);
  // A refusal may come a piece later: a line is judged when it is complete.
  TANDEM_CHECK(pieces.size() == others.size(), "pieces do not matter to the number of requests");
  for (size_t i = 0; i < pieces.size(); ++i) {
    TANDEM_CHECK(pieces[i].path == others[i].path, "nor to a path");
    TANDEM_CHECK(pieces[i].headers == others[i].headers, "nor to headers");
    TANDEM_CHECK(pieces[i].body == others[i].body, "nor to a body");
  }
  return 0;
}

#include "server/http_request_reader.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/cat.h"
#include "base/check.h"
#include "server/http_message.h"
#include "server/http_target.h"

namespace tandem {
namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;

constexpr size_t kMaxUnfinishedLineBytes = size_t{16} << 10;  // of a chunk's header or the trailer
constexpr size_t kShortestChunkedRest = 5;                    // "0\r\n\r\n"

// A body that grows as it arrives: the one of Beast takes the memory that Content-Length promises.
struct GrowingBody {
  using value_type = std::string;
  class reader {
   public:
    template <bool kIsRequest, class Fields>
    reader(http::header<kIsRequest, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<std::uint64_t>&, error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& error) {
      error = {};
      size_t size = 0;
      for (auto it = boost::asio::buffer_sequence_begin(buffers); it != boost::asio::buffer_sequence_end(buffers);
           ++it) {
        const boost::asio::const_buffer part = *it;
        body_.append(static_cast<const char*>(part.data()), part.size());
        size += part.size();
      }
      return size;
    }
    void finish(error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
};

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

bool is_served_method(std::string_view method) {
  for (const std::string_view known : {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}) {
    if (method == known) return true;
  }
  return false;
}

bool takes_body(std::string_view method) { return method == "POST" || method == "PUT" || method == "PATCH"; }

}  // namespace

struct HttpRequestReader::Impl {
  explicit Impl(const HttpReadLimits& read_limits) : limits(read_limits) {
    parser.header_limit(static_cast<std::uint32_t>(limits.max_header_bytes));
    parser.body_limit(static_cast<std::uint64_t>(limits.max_body_bytes));
  }

  HttpReadState refuse(int status, std::string_view message) {
    answer = http_error(status, message);
    return state = HttpReadState::kRefused;
  }

  HttpReadState refuse(const error_code& error) {
    if (error == http::error::header_limit) {
      return refuse(431, cat("request header: expected at most ", limits.max_header_bytes, " bytes, found more"));
    }
    if (error == http::error::body_limit) {
      return refuse(413, cat("request body: expected at most ", limits.max_body_bytes, " bytes, found more"));
    }
    return refuse(400, cat("malformed HTTP request: ", error.message()));
  }

  void drop(std::string& input, size_t count) {
    input.erase(0, count);
    if (state == HttpReadState::kHeader) header_bytes += static_cast<int64_t>(count);
  }

  HttpReadState feed_header(std::string& input);
  HttpReadState feed_body(std::string& input);
  HttpReadState check_header();
  bool check_framing();

  HttpReadLimits limits;
  http::request_parser<GrowingBody> parser;
  HttpReadState state = HttpReadState::kHeader;
  int64_t header_bytes = 0;
  bool has_begun = false;
  bool expects_continue = false;
  bool is_head = false;
  HttpRequest request;
  HttpResponse answer;
};

HttpReadState HttpRequestReader::Impl::feed_header(std::string& input) {
  if (!has_begun) {
    // Some clients end a body with a line break more than its length says.
    const size_t start = input.find_first_not_of("\r\n");
    input.erase(0, start);
    if (input.empty()) return state;
    has_begun = true;
  }
  error_code error;
  parser.eager(false);
  const size_t taken = parser.put(boost::asio::const_buffer(input.data(), input.size()), error);
  drop(input, taken);
  if (error == http::error::need_more) {
    const int64_t seen = header_bytes + static_cast<int64_t>(input.size());
    return seen > limits.max_header_bytes ? refuse(http::error::header_limit) : state;
  }
  if (error) return refuse(error);
  return check_header();
}

// Everything that can be refused before a byte of the body is read.
HttpReadState HttpRequestReader::Impl::check_header() {
  const auto& message = parser.get();
  const std::string_view method = view(message.method_string());
  if (!is_served_method(method)) {
    refuse(405, "request method: expected GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS");
    answer.headers.emplace_back("Allow", "GET, HEAD, POST, OPTIONS");
    return state;
  }
  is_head = method == "HEAD";
  request.method = is_head ? "GET" : std::string{method};
  for (const auto& field : message) {
    request.headers.emplace_back(to_lower_ascii(view(field.name_string())), std::string{view(field.value())});
  }
  auto target = parse_http_target(view(message.target()));
  if (!target.is_ok()) return refuse(400, target.status().message());
  if (target.value().path == "*" && method != "OPTIONS") {
    return refuse(400, "request target: expected a path that begins with '/', found '*'");
  }
  request.path = std::move(target.value().path);
  request.query = std::move(target.value().query);
  if (message.version() >= 11 && !request.header("host")) {
    return refuse(400, "request header: expected Host, found none");
  }
  if (!check_framing()) return state;
  if (parser.is_done()) return state = HttpReadState::kDone;
  return state = HttpReadState::kBody;
}

// Length, coding and expectations of the body; false when refused. Beast has refused a negative or doubled length and
// a length beside chunks.
bool HttpRequestReader::Impl::check_framing() {
  const auto& message = parser.get();
  int num_codings = 0;
  for (const auto& [name, value] : request.headers) {
    if (name == "transfer-encoding" && (++num_codings > 1 || to_lower_ascii(value) != "chunked")) {
      refuse(400, "request header Transfer-Encoding: expected \"chunked\" alone");
      return false;
    }
    if (name == "content-encoding" && to_lower_ascii(value) != "identity") {
      refuse(415, "request header Content-Encoding: compressed bodies are not read; expected \"identity\" or none");
      return false;
    }
    if (name == "expect") {
      if (to_lower_ascii(value) != "100-continue") {
        refuse(417, "request header Expect: expected \"100-continue\"");
        return false;
      }
      expects_continue = message.version() >= 11 && !parser.is_done();
    }
  }
  if (num_codings > 0 && message.version() < 11) {
    refuse(400, "request header Transfer-Encoding: HTTP/1.0 has none");
    return false;
  }
  if (takes_body(request.method) && num_codings == 0 && !request.header("content-length")) {
    refuse(411, "request header: expected Content-Length or Transfer-Encoding: chunked, found neither");
    return false;
  }
  return true;
}

HttpReadState HttpRequestReader::Impl::feed_body(std::string& input) {
  // Beast cannot take the end of an empty body in pieces. Whatever is still to come of a chunked body is this long.
  if (parser.chunked() && input.size() < kShortestChunkedRest) return state;
  if (input.empty()) return state;
  error_code error;
  parser.eager(true);
  const size_t taken = parser.put(boost::asio::const_buffer(input.data(), input.size()), error);
  drop(input, taken);
  if (error && error != http::error::need_more) return refuse(error);
  if (parser.is_done()) {
    request.body = std::move(parser.get().body());
    return state = HttpReadState::kDone;
  }
  if (input.size() > kMaxUnfinishedLineBytes) return refuse(400, "chunked body: a chunk's header is too long");
  return state;
}

HttpRequestReader::HttpRequestReader(const HttpReadLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}
HttpRequestReader::HttpRequestReader(HttpRequestReader&&) noexcept = default;
HttpRequestReader& HttpRequestReader::operator=(HttpRequestReader&&) noexcept = default;
HttpRequestReader::~HttpRequestReader() = default;

HttpReadState HttpRequestReader::feed(std::string& input) {
  if (impl_->state == HttpReadState::kHeader) impl_->feed_header(input);
  if (impl_->state == HttpReadState::kBody) impl_->feed_body(input);
  return impl_->state;
}

HttpReadState HttpRequestReader::state() const { return impl_->state; }
bool HttpRequestReader::has_begun() const { return impl_->has_begun; }

bool HttpRequestReader::take_expects_continue() {
  return impl_->state == HttpReadState::kBody && std::exchange(impl_->expects_continue, false);
}

HttpRequest HttpRequestReader::take_request() {
  TANDEM_CHECK(impl_->state == HttpReadState::kDone, "a request is taken when it is complete");
  return std::move(impl_->request);
}

bool HttpRequestReader::keep_alive() const { return impl_->parser.keep_alive(); }
int HttpRequestReader::version() const { return static_cast<int>(impl_->parser.get().version()); }
bool HttpRequestReader::is_head() const { return impl_->is_head; }
const HttpResponse& HttpRequestReader::refusal() const { return impl_->answer; }

}  // namespace tandem

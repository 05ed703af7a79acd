// tests/server/http_test_client.h: a client that sends exactly the bytes it is told, for well-formed and hostile tests;
// and a server on a free port around a handler. Reading gives up after a generous deadline and reports what came.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/http_server.h"

namespace tandem::test {

struct ParsedResponse {
  bool is_complete = false;
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // without the framing of chunks
  std::vector<std::string> chunks;             // each, when chunked
};

class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_buffer_bytes = 0);  // 0: the system's
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;
  ~RawClient();

  bool is_connected() const { return fd_ >= 0; }
  bool send(std::string_view bytes);  // all; false when the server does not take them
  void close_sending();               // half-closes
  void close();
  void reset();  // closes with RST

  // Reads until `text` was received and returns everything up to and with it; what follows is kept for the next call.
  std::string read_until(std::string_view text);
  // The next response. `has_body`: false for the answer to HEAD.
  ParsedResponse read_response(bool has_body = true);
  std::string read_to_end();  // until the server closes
  // Whether the server closes, having sent nothing more.
  bool is_closed_by_server();
  bool has_failed() const { return has_failed_; }  // a deadline passed

 private:
  bool fill();  // false at the end, or after the deadline
  bool take_chunks(ParsedResponse& response);

  int fd_ = -1;
  bool has_failed_ = false;
  std::string received_;
};

// "GET /path HTTP/1.1" with Host; with a body: POST and its length.
std::string get_request(std::string_view path, std::string_view more_headers = "");
std::string post_request(std::string_view path, std::string_view body, std::string_view more_headers = "");

// Options with a free port.
HttpServerOptions test_options();
std::unique_ptr<HttpServer> start_server(HttpServerOptions options, HttpHandler handler, HttpServerHooks hooks = {});

// True as soon as `condition` holds; false after a generous deadline.
template <class Condition>
bool eventually(Condition condition);

void sleep_a_little();

template <class Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 20000; ++i) {
    if (condition()) return true;
    sleep_a_little();
  }
  return false;
}

}  // namespace tandem::test

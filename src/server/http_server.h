// server/http_server.h: an HTTP/1.1 server over Boost.Asio: sockets, limits, time-outs, connections that vanish. It
// knows no route: every request that arrives whole goes to one handler (http_exchange.h).
//
//   A connection lives on one I/O thread, handlers run on workers. One exchange at a time on a connection; requests
//   sent ahead wait, at most max_header_bytes of them. While an exchange is unanswered the socket is watched, and a
//   client that closes it, or only its sending half, has gone: its exchange hears so at once.
//   The server resolves no names and opens no connection.
//   What it answers by itself, in OpenAI's error shape: 400 405 408 411 413 415 417 431 503, and 204 to OPTIONS.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "server/http_exchange.h"

namespace tandem {

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // a numeric IPv4 or IPv6 address, or "localhost"; "::" serves both families
  uint16_t port = 8000;            // 0: the system chooses, see port()
  int io_threads = 1;
  int worker_threads = 2;
  int64_t max_connections = 2048;  // more are told 503
  int64_t max_header_bytes = int64_t{64} << 10;
  int64_t max_body_bytes = int64_t{64} << 20;
  int64_t max_unsent_bytes = int64_t{1} << 20;  // of a stream, beside what the system buffers
  double header_seconds = 20;                   // from a request's first byte, or from connecting, to its last header
  double idle_seconds = 75;                     // between requests
  double body_window_seconds = 20;              // a body must bring min_body_bytes in each such window
  int64_t min_body_bytes = 4096;
  double send_seconds = 30;       // without the client taking a byte of what waits for it
  double linger_seconds = 2;      // for a client to read the last answer before the socket is closed
  std::string cors_origin = "*";  // "": no CORS headers
};

// One finished exchange or refused request, for a log. Without query, headers and body: they hold keys and prompts.
struct HttpLogEntry {
  std::string request_id;
  std::string peer;
  std::string method;  // "" when the request was not understood
  std::string path;
  int status = 0;  // 499: the client had gone before there was one
  int64_t received_bytes = 0;
  int64_t sent_bytes = 0;
  double seconds = 0;
  bool is_client_gone = false;  // before the whole answer was sent
};

// Called on I/O threads and workers, several at once; must not block.
struct HttpServerHooks {
  std::function<void(const HttpLogEntry&)> on_exchange;
  std::function<void(const std::string&)> on_problem;  // the server's own troubles
};

struct HttpServerStats {
  int64_t connections = 0;  // open
  int64_t exchanges = 0;    // not fully answered
  int64_t accepted = 0;     // since the start
  int64_t refused = 0;      // connections over the limit
};

class HttpServer {
 public:
  // Listening when it returns. kInvalidArgument: the options; kIo: the address is taken or not ours.
  static Result<std::unique_ptr<HttpServer>> start(HttpServerOptions options, HttpHandler handler,
                                                   HttpServerHooks hooks = {});
  // As drain(0); then workers finish what is queued and every thread ends. Exchanges may outlive the server: what is
  // done to them has no effect any more.
  ~HttpServer();

  uint16_t port() const;
  std::string url() const;  // "http://127.0.0.1:8000"
  bool is_loopback() const;
  HttpServerStats stats() const;  // any thread

  // Takes no new connection, closes idle ones, lets running exchanges finish (each the last of its connection) until
  // `seconds` are over, then closes them too: on_disconnect. Returns how many were cut. Any thread but the server's.
  int64_t drain(double seconds);

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem

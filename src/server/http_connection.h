// server/http_connection.h: one connection, a coroutine on its I/O thread: read a request, hand it over, send what the
// exchange brings, again. Includes Boost.Asio: only http_connection.cpp and http_server.cpp include this file.
//
//   Everything here is touched by the connection's I/O thread alone, but HttpServerContext's atomics and hooks. The
//   exchange wakes the coroutine by posting to the I/O thread (HttpExchangeState::attach).
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>

#include "server/http_exchange_state.h"
#include "server/http_request_reader.h"
#include "server/http_server.h"

namespace tandem {

class HttpConnection;

// What all connections share; outlives them.
struct HttpServerContext {
  HttpServerOptions options;
  HttpHandler handler;
  HttpServerHooks hooks;
  std::shared_ptr<HttpWorkers> workers;  // shared with exchanges that outlive the server
  std::atomic<bool> is_draining = false;
  std::atomic<int64_t> connections = 0;
  std::atomic<int64_t> exchanges = 0;
  std::atomic<int64_t> accepted = 0;
  std::atomic<int64_t> refused = 0;
  std::atomic<uint64_t> next_request = 0;
  std::string id_prefix;  // of request ids: differs from run to run
};

// One I/O thread's part.
struct HttpIoThread {
  std::string scratch;                              // what a read fills; emptied before another connection runs
  std::unordered_set<HttpConnection*> connections;  // running
  boost::asio::io_context io{1};                    // destroyed first: what it still holds touches the others
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(boost::asio::ip::tcp::socket socket, HttpServerContext& context, HttpIoThread& thread);
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;
  ~HttpConnection();

  // The life of the connection; hold a reference to it for as long.
  boost::asio::awaitable<void> run();
  // The life of one too many: 503.
  boost::asio::awaitable<void> run_refused();

  void begin_drain();  // closes when idle
  void abort();        // closes

 private:
  using Clock = std::chrono::steady_clock;
  enum class Wait { kReady, kTimedOut, kFailed };
  enum class Received { kBytes, kNothing, kEnd, kFailed };

  boost::asio::awaitable<void> serve();
  boost::asio::awaitable<bool> read_request(HttpRequestReader& reader);
  boost::asio::awaitable<bool> answer(HttpRequestReader& reader);
  boost::asio::awaitable<bool> send_answer(HttpExchangeState& exchange);
  boost::asio::awaitable<void> refuse(const HttpResponse& response);
  boost::asio::awaitable<bool> send(std::string_view bytes);
  boost::asio::awaitable<Wait> wait(boost::asio::ip::tcp::socket::wait_type what);
  boost::asio::awaitable<void> wait_for_event();
  boost::asio::awaitable<void> linger();
  boost::asio::awaitable<void> stop_watching();

  void close();
  Received receive();
  void on_wake();
  void watch();
  void on_readable();
  void poll_later();
  void set_deadline(double seconds);
  void clear_deadline();
  void log(const HttpRequest& request, int status, bool is_client_gone);

  boost::asio::ip::tcp::socket socket_;
  HttpServerContext& context_;
  HttpIoThread& thread_;
  std::string peer_;
  std::string input_;                   // received, not used yet
  boost::asio::steady_timer deadline_;  // ends waits on the socket
  uint64_t deadline_number_ = 0;        // of the deadline that is set: an older one has no effect
  bool is_timed_out_ = false;
  boost::asio::steady_timer event_;              // never expires; cancelled to wake the coroutine
  boost::asio::steady_timer poll_;               // while input_ is full
  std::shared_ptr<HttpExchangeState> exchange_;  // the running one, shared with its handler
  bool is_watching_ = false;                     // a wait for readability or poll_ is pending beside the coroutine
  bool stops_watching_ = false;
  bool is_idle_ = false;    // between requests
  bool is_at_end_ = false;  // the client sends no more
  bool is_broken_ = false;  // reset, or aborted
  std::string request_id_;
  Clock::time_point request_begin_;
  int64_t received_bytes_ = 0;  // since the request's begin
  int64_t sent_bytes_ = 0;
};

}  // namespace tandem

#include "server/http_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <utility>

#include "base/cat.h"

namespace tandem {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Socket = asio::ip::tcp::socket;

constexpr auto kNoThrow = asio::as_tuple(asio::use_awaitable);
constexpr auto kPollInterval = std::chrono::milliseconds(250);

std::chrono::steady_clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

std::string peer_name(const Socket& socket) {
  error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error) return "?";
  const std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? cat("[", address, "]:", endpoint.port()) : cat(address, ":", endpoint.port());
}

// Whether the client has closed its side behind bytes that nobody reads yet.
bool has_peer_closed(Socket& socket) {
  pollfd entry = {socket.native_handle(), POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace

HttpConnection::HttpConnection(Socket socket, HttpServerContext& context, HttpIoThread& thread)
    : socket_(std::move(socket)),
      context_(context),
      thread_(thread),
      peer_(peer_name(socket_)),
      deadline_(thread.io),
      event_(thread.io, asio::steady_timer::time_point::max()),
      poll_(thread.io) {
  error_code ignored;
  socket_.non_blocking(true, ignored);
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  ++context_.connections;
}

HttpConnection::~HttpConnection() {
  if (exchange_) {
    exchange_->detach();
    --context_.exchanges;
  }
  thread_.connections.erase(this);
  --context_.connections;
}

asio::awaitable<void> HttpConnection::run() {
  thread_.connections.insert(this);
  std::string problem;
  try {
    co_await serve();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (!problem.empty() && context_.hooks.on_problem)
    context_.hooks.on_problem(cat("connection ", peer_, ": ", problem));
  close();
}

asio::awaitable<void> HttpConnection::run_refused() {
  thread_.connections.insert(this);
  HttpResponse response = http_error(503, "too many connections", "engine_overloaded");
  response.headers.emplace_back("Retry-After", "1");
  co_await refuse(response);
  close();
}

void HttpConnection::begin_drain() {
  error_code ignored;
  if (is_idle_) socket_.cancel(ignored);
}

void HttpConnection::abort() {
  is_broken_ = true;
  close();
  poll_.cancel();
  event_.cancel();
}

void HttpConnection::close() {
  // First: a worker may be sending.
  if (exchange_) exchange_->detach();
  clear_deadline();
  error_code ignored;
  socket_.close(ignored);
}

asio::awaitable<void> HttpConnection::serve() {
  for (bool is_first = true;; is_first = false) {
    set_deadline(is_first ? context_.options.header_seconds : context_.options.idle_seconds);
    HttpRequestReader reader({context_.options.max_header_bytes, context_.options.max_body_bytes});
    const bool has_request = co_await read_request(reader);
    clear_deadline();
    if (!has_request) co_return;
    if (reader.state() == HttpReadState::kRefused) {
      co_await refuse(reader.refusal());
      co_return;
    }
    const bool is_reusable = co_await answer(reader);
    if (!is_reusable) break;
  }
  co_await linger();
}

// ---- reading --------------------------------------------------------------------------------------------------------

// True: the reader is done, or knows why not. False: nothing more is to be said on this connection.
asio::awaitable<bool> HttpConnection::read_request(HttpRequestReader& reader) {
  const HttpServerOptions& options = context_.options;
  is_idle_ = input_.empty();
  received_bytes_ = static_cast<int64_t>(input_.size());
  sent_bytes_ = 0;
  request_begin_ = Clock::now();
  request_id_ = cat("req-", context_.id_prefix, "-", ++context_.next_request);
  bool has_begun = false;
  bool is_in_body = false;
  int64_t window_begin = 0;
  for (;;) {
    const HttpReadState state = reader.feed(input_);
    if (state == HttpReadState::kDone || state == HttpReadState::kRefused) break;
    if (reader.has_begun() && !std::exchange(has_begun, true)) {
      is_idle_ = false;
      request_begin_ = Clock::now();
      set_deadline(options.header_seconds);
    }
    if (!has_begun && context_.is_draining) co_return false;
    if (reader.take_expects_continue() && input_.empty()) {
      const bool is_sent = co_await send("HTTP/1.1 100 Continue\r\n\r\n");
      if (!is_sent) co_return false;
    }
    if (state == HttpReadState::kBody && !std::exchange(is_in_body, true)) {
      window_begin = received_bytes_;
      set_deadline(options.body_window_seconds);
    }
    const Wait outcome = co_await wait(Socket::wait_read);
    if (outcome == Wait::kFailed || (outcome == Wait::kTimedOut && !has_begun)) co_return false;
    if (outcome == Wait::kTimedOut) {
      if (is_in_body && received_bytes_ - window_begin >= options.min_body_bytes) {
        window_begin = received_bytes_;
        set_deadline(options.body_window_seconds);
        continue;
      }
      const HttpResponse late = http_error(
          408, is_in_body ? "the request's body came too slowly" : "the request's header was not complete in time");
      co_await refuse(late);
      co_return false;
    }
    const Received received = receive();
    if (received == Received::kFailed || (received == Received::kEnd && !has_begun)) co_return false;
    if (received == Received::kEnd) {
      is_at_end_ = true;
      const HttpResponse cut = http_error(400, "the request ends before it is complete");
      co_await refuse(cut);
      co_return false;
    }
  }
  is_idle_ = false;
  co_return true;
}

HttpConnection::Received HttpConnection::receive() {
  error_code error;
  const size_t size = socket_.read_some(asio::buffer(thread_.scratch), error);
  if (error == asio::error::would_block || error == asio::error::try_again) return Received::kNothing;
  if (error == asio::error::eof) return Received::kEnd;
  if (error) return Received::kFailed;
  input_.append(thread_.scratch, 0, size);
  received_bytes_ += static_cast<int64_t>(size);
  return Received::kBytes;
}

// ---- one exchange ---------------------------------------------------------------------------------------------------

// Whether the connection can carry another.
asio::awaitable<bool> HttpConnection::answer(HttpRequestReader& reader) {
  HttpExchangeSetup setup;
  setup.style = {reader.version(), reader.keep_alive() && !context_.is_draining, std::nullopt,
                 context_.options.cors_origin, request_id_};
  setup.is_head = reader.is_head();
  setup.max_unsent_bytes = context_.options.max_unsent_bytes;
  setup.is_draining = &context_.is_draining;
  exchange_ = std::make_shared<HttpExchangeState>(reader.take_request(), std::move(setup), context_.workers);
  ++context_.exchanges;
  // Detached before the socket is closed and before `this` ends: both are there while these are called.
  exchange_->attach(
      [this] {
        if (auto self = weak_from_this().lock()) {
          asio::post(thread_.io, [self = std::move(self)] { self->on_wake(); });
        }
      },
      [fd = socket_.native_handle()](std::string_view bytes) {
        const ssize_t size = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        return size > 0 ? static_cast<size_t>(size) : size_t{0};
      });
  if (exchange_->request().method == "OPTIONS") {
    exchange_->respond(http_preflight(exchange_->request(), context_.options.cors_origin));
  } else {
    exchange_->handle(context_.handler);
  }
  stops_watching_ = false;
  watch();
  const bool is_reusable = co_await send_answer(*exchange_);
  exchange_->detach();
  sent_bytes_ += exchange_->directly_sent_bytes();
  const int status = exchange_->status();
  log(exchange_->request(), status == 0 ? 499 : status, is_broken_);
  co_await stop_watching();
  exchange_ = nullptr;
  --context_.exchanges;
  co_return is_reusable && !is_at_end_ && !is_broken_;
}

asio::awaitable<bool> HttpConnection::send_answer(HttpExchangeState& exchange) {
  for (;;) {
    const HttpExchangeState::Pulled pulled = exchange.pull();
    is_broken_ = is_broken_ || pulled.is_aborted;
    if (is_broken_) co_return false;
    if (!pulled.bytes.empty()) {
      const bool is_sent = co_await send(pulled.bytes);
      exchange.sent(static_cast<int64_t>(pulled.bytes.size()));
      if (!is_sent) {
        is_broken_ = true;
        co_return false;
      }
    }
    if (pulled.is_finished) co_return !pulled.must_close;
    if (pulled.bytes.empty()) co_await wait_for_event();
  }
}

// The exchange has news. A send that waits for a client whose exchange was aborted ends here, not at its deadline.
void HttpConnection::on_wake() {
  event_.cancel();
  if (!exchange_ || !exchange_->is_aborted()) return;
  is_broken_ = true;
  error_code ignored;
  socket_.cancel(ignored);
}

// Notices, beside the coroutine, that the client goes; keeps what it sends ahead.
void HttpConnection::watch() {
  if (stops_watching_ || is_at_end_ || is_broken_) return;
  if (static_cast<int64_t>(input_.size()) >= context_.options.max_header_bytes) return poll_later();
  is_watching_ = true;
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](const error_code& error) {
    self->is_watching_ = false;
    if (!error && !self->stops_watching_) self->on_readable();
    self->event_.cancel();
  });
}

void HttpConnection::on_readable() {
  switch (receive()) {
    case Received::kBytes:
    case Received::kNothing: return watch();
    case Received::kEnd: is_at_end_ = true; break;
    case Received::kFailed: is_broken_ = true; break;
  }
  exchange_->client_gone();
}

void HttpConnection::poll_later() {
  is_watching_ = true;
  poll_.expires_after(kPollInterval);
  poll_.async_wait([self = shared_from_this()](const error_code& error) {
    self->is_watching_ = false;
    self->event_.cancel();
    if (error || self->stops_watching_) return;
    if (!has_peer_closed(self->socket_)) return self->poll_later();
    self->is_at_end_ = true;
    self->exchange_->client_gone();
  });
}

asio::awaitable<void> HttpConnection::stop_watching() {
  stops_watching_ = true;
  error_code ignored;
  if (is_watching_) socket_.cancel(ignored);
  poll_.cancel();
  while (is_watching_) co_await wait_for_event();
}

asio::awaitable<void> HttpConnection::refuse(const HttpResponse& response) {
  HttpHeadStyle style;
  style.keep_alive = false;
  style.body_bytes = static_cast<int64_t>(response.body.size());
  style.cors_origin = context_.options.cors_origin;
  style.request_id = request_id_;
  const std::string bytes = http_head(response, style) + response.body;
  const bool is_sent = co_await send(bytes);
  log(HttpRequest{}, response.status, !is_sent);
  if (is_sent) co_await linger();
}

// ---- the socket -----------------------------------------------------------------------------------------------------

// False: the client has gone, or takes nothing for too long.
asio::awaitable<bool> HttpConnection::send(std::string_view bytes) {
  bool is_blocked = false;
  while (!bytes.empty()) {
    error_code error;
    const size_t size = socket_.write_some(asio::buffer(bytes.data(), bytes.size()), error);
    if (error == asio::error::would_block || error == asio::error::try_again) {
      is_blocked = true;
      set_deadline(context_.options.send_seconds);
      const Wait outcome = co_await wait(Socket::wait_write);
      if (outcome != Wait::kReady) co_return false;
      continue;
    }
    if (error) co_return false;
    bytes.remove_prefix(size);
    sent_bytes_ += static_cast<int64_t>(size);
  }
  if (is_blocked) clear_deadline();
  co_return true;
}

asio::awaitable<HttpConnection::Wait> HttpConnection::wait(Socket::wait_type what) {
  const auto [error] = co_await socket_.async_wait(what, kNoThrow);
  if (is_timed_out_) co_return Wait::kTimedOut;
  co_return error ? Wait::kFailed : Wait::kReady;
}

asio::awaitable<void> HttpConnection::wait_for_event() {
  // Cancelled is what it waits for. The caller has looked for news since the thread last ran anything else.
  co_await event_.async_wait(kNoThrow);
}

// Closing over unread bytes would reset the connection, and the client could lose the answer it was sent.
asio::awaitable<void> HttpConnection::linger() {
  if (is_broken_ || is_at_end_) co_return;
  error_code error;
  socket_.shutdown(Socket::shutdown_send, error);
  if (error) co_return;
  set_deadline(context_.options.linger_seconds);
  for (;;) {
    const Wait outcome = co_await wait(Socket::wait_read);
    if (outcome != Wait::kReady) co_return;
    const Received received = receive();
    input_.clear();
    if (received == Received::kEnd || received == Received::kFailed) co_return;
  }
}

void HttpConnection::set_deadline(double seconds) {
  is_timed_out_ = false;
  const uint64_t number = ++deadline_number_;
  deadline_.expires_after(to_duration(seconds));
  deadline_.async_wait([weak = weak_from_this(), number](const error_code& error) {
    const auto self = weak.lock();
    if (error || !self || number != self->deadline_number_) return;
    self->is_timed_out_ = true;
    error_code ignored;
    self->socket_.cancel(ignored);
  });
}

void HttpConnection::clear_deadline() {
  is_timed_out_ = false;
  ++deadline_number_;
  deadline_.cancel();
}

void HttpConnection::log(const HttpRequest& request, int status, bool is_client_gone) {
  if (!context_.hooks.on_exchange) return;
  HttpLogEntry entry;
  entry.request_id = request_id_;
  entry.peer = peer_;
  entry.method = request.method;
  entry.path = request.path;
  entry.status = status;
  entry.received_bytes = received_bytes_;
  entry.sent_bytes = sent_bytes_;
  entry.seconds = std::chrono::duration<double>(Clock::now() - request_begin_).count();
  entry.is_client_gone = is_client_gone;
  context_.hooks.on_exchange(entry);
}

}  // namespace tandem

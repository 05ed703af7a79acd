#include "server/http_server.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "server/http_connection.h"

namespace tandem {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr int64_t kMaxRefusedAtOnce = 64;  // connections over the limit that hear why; more are only closed
constexpr auto kAcceptPause = std::chrono::milliseconds(50);
constexpr auto kDrainPoll = std::chrono::milliseconds(1);
constexpr double kAbortSeconds = 5;
constexpr size_t kScratchBytes = size_t{64} << 10;

Result<tcp::endpoint> endpoint_of(const HttpServerOptions& options) {
  std::string host = options.host == "localhost" ? "127.0.0.1" : options.host;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  error_code error;
  const auto address = asio::ip::make_address(host, error);
  if (error) {
    return Status::invalid(cat("host: expected a numeric address or \"localhost\", found \"", options.host, "\""));
  }
  return tcp::endpoint(address, options.port);
}

Status check(const HttpServerOptions& options) {
  const auto at_least_one = [](std::string_view name, int64_t value) {
    return value >= 1 ? Status::ok() : Status::invalid(cat(name, ": expected at least 1, found ", value));
  };
  TANDEM_RETURN_IF_ERROR(at_least_one("io_threads", options.io_threads));
  TANDEM_RETURN_IF_ERROR(at_least_one("worker_threads", options.worker_threads));
  TANDEM_RETURN_IF_ERROR(at_least_one("max_connections", options.max_connections));
  TANDEM_RETURN_IF_ERROR(at_least_one("max_body_bytes", options.max_body_bytes));
  TANDEM_RETURN_IF_ERROR(at_least_one("max_unsent_bytes", options.max_unsent_bytes));
  if (options.max_header_bytes < 256 || options.max_header_bytes > (int64_t{16} << 20)) {
    return Status::invalid(cat("max_header_bytes: expected 256 to 16777216, found ", options.max_header_bytes));
  }
  for (const double seconds : {options.header_seconds, options.idle_seconds, options.body_window_seconds,
                               options.send_seconds, options.linger_seconds}) {
    if (!(seconds > 0 && seconds <= 86400)) {
      return Status::invalid(cat("time-outs: expected seconds above 0 and at most 86400, found ", seconds));
    }
  }
  return Status::ok();
}

// The connection lives as long as this coroutine.
asio::awaitable<void> run_connection(std::shared_ptr<HttpConnection> connection) { co_await connection->run(); }
asio::awaitable<void> run_refused(std::shared_ptr<HttpConnection> connection) { co_await connection->run_refused(); }

}  // namespace

struct HttpServer::Impl {
  Status listen(const tcp::endpoint& endpoint);
  void start_threads();
  void run_io(HttpIoThread& thread);
  asio::awaitable<void> accept();
  void on_each_connection(void (HttpConnection::*action)());
  bool wait_until_closed(double seconds) const;
  void problem(const std::string& what) const {
    if (context.hooks.on_problem) context.hooks.on_problem(what);
  }

  HttpServerContext context;
  std::vector<std::unique_ptr<HttpIoThread>> io_threads;
  std::vector<asio::executor_work_guard<asio::io_context::executor_type>> guards;
  std::optional<tcp::acceptor> acceptor;  // of the first I/O thread
  tcp::endpoint local;
  std::vector<std::thread> threads;
};

Status HttpServer::Impl::listen(const tcp::endpoint& endpoint) {
  const std::string name = cat("listening at ", context.options.host, " port ", endpoint.port());
  error_code error;
  acceptor.emplace(io_threads.front()->io);
  const auto failed = [&] { return static_cast<bool>(error); };
  acceptor->open(endpoint.protocol(), error);
  if (!failed()) acceptor->set_option(tcp::acceptor::reuse_address(true), error);
  if (!failed() && endpoint.address().is_v6()) acceptor->set_option(asio::ip::v6_only(false), error);
  if (!failed()) acceptor->bind(endpoint, error);
  if (!failed()) acceptor->listen(asio::socket_base::max_listen_connections, error);
  if (!failed()) local = acceptor->local_endpoint(error);
  return failed() ? Status::io(cat(name, ": ", error.message())) : Status::ok();
}

void HttpServer::Impl::start_threads() {
  for (auto& thread : io_threads) {
    guards.emplace_back(thread->io.get_executor());
    threads.emplace_back([this, &thread = *thread] { run_io(thread); });
  }
  asio::co_spawn(io_threads.front()->io, accept(), asio::detached);
}

void HttpServer::Impl::run_io(HttpIoThread& thread) {
  for (;;) {
    try {
      thread.io.run();
      return;
    } catch (const std::exception& error) {
      problem(cat("I/O thread: ", error.what()));
    }
  }
}

asio::awaitable<void> HttpServer::Impl::accept() {
  constexpr auto kNoThrow = asio::as_tuple(asio::use_awaitable);
  asio::steady_timer pause(io_threads.front()->io);
  for (size_t next = 0;; ++next) {
    HttpIoThread& thread = *io_threads[next % io_threads.size()];
    tcp::socket socket(thread.io);
    const auto [error] = co_await acceptor->async_accept(socket, kNoThrow);
    if (error == asio::error::operation_aborted || error == asio::error::bad_descriptor) co_return;
    if (error) {  // out of descriptors or memory: those who wait stay in the queue
      problem(cat("accepting a connection: ", error.message()));
      pause.expires_after(kAcceptPause);
      co_await pause.async_wait(kNoThrow);
      continue;
    }
    ++context.accepted;
    const int64_t open = context.connections;
    const bool is_refused = open >= context.options.max_connections;
    if (is_refused) ++context.refused;
    if (open >= context.options.max_connections + kMaxRefusedAtOnce) continue;
    auto connection = std::make_shared<HttpConnection>(std::move(socket), context, thread);
    if (is_refused) {
      asio::co_spawn(thread.io, run_refused(std::move(connection)), asio::detached);
    } else {
      asio::co_spawn(thread.io, run_connection(std::move(connection)), asio::detached);
    }
  }
}

void HttpServer::Impl::on_each_connection(void (HttpConnection::*action)()) {
  for (auto& thread : io_threads) {
    asio::post(thread->io, [&thread = *thread, action] {
      for (HttpConnection* connection : thread.connections) (connection->*action)();
    });
  }
}

bool HttpServer::Impl::wait_until_closed(double seconds) const {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (context.connections > 0) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kDrainPoll);
  }
  return true;
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerOptions options, HttpHandler handler,
                                                      HttpServerHooks hooks) {
  TANDEM_RETURN_IF_ERROR(check(options));
  const auto endpoint = endpoint_of(options);
  if (!endpoint.is_ok()) return endpoint.status();
  auto impl = std::make_unique<Impl>();
  HttpServerContext& context = impl->context;
  context.options = std::move(options);
  context.handler = std::move(handler);
  context.hooks = std::move(hooks);
  std::random_device random;
  context.id_prefix = cat(random() % 1000000);
  for (int i = 0; i < context.options.io_threads; ++i) {
    impl->io_threads.push_back(std::make_unique<HttpIoThread>());
    impl->io_threads.back()->scratch.resize(kScratchBytes);
  }
  try {
    TANDEM_RETURN_IF_ERROR(impl->listen(endpoint.value()));
    context.workers = std::make_shared<HttpWorkers>(context.options.worker_threads,
                                                    [on_problem = context.hooks.on_problem](const std::string& what) {
                                                      if (on_problem) on_problem(cat("handler: ", what));
                                                    });
    impl->start_threads();
  } catch (const std::exception& error) {
    return Status::exhausted(cat("starting the HTTP server: ", error.what()));
  }
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() {
  drain(0);
  impl_->guards.clear();
  for (auto& thread : impl_->io_threads) thread->io.stop();
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->context.workers->stop();
}

uint16_t HttpServer::port() const { return impl_->local.port(); }
bool HttpServer::is_loopback() const { return impl_->local.address().is_loopback(); }

std::string HttpServer::url() const {
  const std::string address = impl_->local.address().to_string();
  return impl_->local.address().is_v6() ? cat("http://[", address, "]:", port()) : cat("http://", address, ":", port());
}

HttpServerStats HttpServer::stats() const {
  const HttpServerContext& context = impl_->context;
  return {context.connections, context.exchanges, context.accepted, context.refused};
}

int64_t HttpServer::drain(double seconds) {
  HttpServerContext& context = impl_->context;
  context.is_draining = true;
  asio::post(impl_->io_threads.front()->io, [impl = impl_.get()] {
    error_code ignored;
    impl->acceptor->close(ignored);
  });
  impl_->on_each_connection(&HttpConnection::begin_drain);
  if (impl_->wait_until_closed(seconds)) return 0;
  const int64_t cut = context.exchanges;
  impl_->on_each_connection(&HttpConnection::abort);
  if (!impl_->wait_until_closed(kAbortSeconds)) impl_->problem("draining: connections are still open");
  return cut;
}

}  // namespace tandem

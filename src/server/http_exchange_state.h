// server/http_exchange_state.h: what a handler and a connection share of one exchange: the bytes to send, who has
// finished, who has gone.
//
//   The handler's side may be any thread, the connection's side is its I/O thread; all state is guarded by mu_. Either
//   side may end first: the connection detaches, the handler's last reference answers 500 when nothing was answered.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "server/http_exchange.h"
#include "server/http_message.h"
#include "server/http_workers.h"

namespace tandem {

struct HttpExchangeSetup {
  HttpHeadStyle style;
  bool is_head = false;                            // the answer's body is not sent
  int64_t max_unsent_bytes = 0;                    // of a stream
  const std::atomic<bool>* is_draining = nullptr;  // read while attached: an answer begun after it closes
};

class HttpExchangeState : public std::enable_shared_from_this<HttpExchangeState> {
 public:
  HttpExchangeState(HttpRequest request, HttpExchangeSetup setup, std::shared_ptr<HttpWorkers> workers);

  // The handler's side. handle() calls the handler on a worker with an exchange over this state.
  void handle(const HttpHandler& handler);
  const HttpRequest& request() const { return request_; }
  void respond(HttpResponse response);
  void begin_stream(HttpResponse response);
  bool write(const std::string& data);
  void end(bool is_complete);
  void on_disconnect(std::function<void()> callback);
  void post(std::function<void()> task) { tasks_->post(std::move(task)); }
  void abandon();  // the handler has let go

  // The connection's side.
  // Both are called under mu_ and must not call back. `wake`: pull() has news. `try_send` sends what the system takes
  // at once and returns how much; a frame of a stream goes that way when nothing waits before it, which saves the way
  // over the I/O thread. An error is 0: the I/O thread then meets it.
  void attach(std::function<void()> wake, std::function<size_t(std::string_view)> try_send);
  void detach();       // neither is called again; what is not answered yet counts as gone
  void client_gone();  // cancels; an answer that still comes may still be pulled
  struct Pulled {
    std::string bytes;         // to send next
    bool is_finished = false;  // and nothing follows them
    bool must_close = false;   // after them
    bool is_aborted = false;   // the client reads too slowly: close without sending
  };
  Pulled pull();
  void sent(int64_t bytes);  // of those pulled
  bool is_aborted() const;   // as Pulled says: a send under way need not go on
  int status() const;        // 0: none yet
  int64_t directly_sent_bytes() const;

 private:
  using Callback = std::function<void()>;

  void answer_locked(const HttpResponse& response, bool is_stream);
  void wake_locked();
  // These hand back the callback of on_disconnect() to be posted, or let go, without the lock: it may hold the
  // exchange.
  [[nodiscard]] Callback append_locked(std::string_view data);
  [[nodiscard]] Callback finish_locked(bool must_close);
  [[nodiscard]] Callback go_locked();
  void post_if_any(Callback callback);

  const HttpRequest request_;
  HttpExchangeSetup setup_;
  std::shared_ptr<SerialTasks> tasks_;  // shared with the worker that runs one of them
  mutable std::mutex mu_;
  std::function<void()> wake_;
  std::function<size_t(std::string_view)> try_send_;
  bool is_woken_ = false;
  Callback on_disconnect_;
  std::string pending_;
  int64_t unsent_bytes_ = 0;  // pending, or pulled and not sent
  int64_t directly_sent_bytes_ = 0;
  int status_ = 0;
  bool is_stream_ = false;
  bool is_finished_ = false;
  bool is_gone_ = false;
  bool is_aborted_ = false;
};

}  // namespace tandem

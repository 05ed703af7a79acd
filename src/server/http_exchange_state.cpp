#include "server/http_exchange_state.h"

#include <utility>

#include "base/check.h"

namespace tandem {
namespace {

// What a handler holds; the last copy let go ends the exchange.
class StateExchange final : public HttpExchange {
 public:
  explicit StateExchange(std::shared_ptr<HttpExchangeState> state) : state_(std::move(state)) {}
  StateExchange(const StateExchange&) = delete;
  StateExchange& operator=(const StateExchange&) = delete;
  ~StateExchange() override { state_->abandon(); }

  const HttpRequest& request() const override { return state_->request(); }
  void respond(HttpResponse response) override { state_->respond(std::move(response)); }
  void begin_stream(HttpResponse response) override { state_->begin_stream(std::move(response)); }
  bool write(std::string data) override { return state_->write(data); }
  void end(bool is_complete) override { state_->end(is_complete); }
  void on_disconnect(std::function<void()> callback) override { state_->on_disconnect(std::move(callback)); }
  void post(std::function<void()> task) override { state_->post(std::move(task)); }

 private:
  std::shared_ptr<HttpExchangeState> state_;  // shared with the connection
};

}  // namespace

HttpExchangeState::HttpExchangeState(HttpRequest request, HttpExchangeSetup setup, std::shared_ptr<HttpWorkers> workers)
    : request_(std::move(request)),
      setup_(std::move(setup)),
      tasks_(std::make_shared<SerialTasks>(std::move(workers))) {}

void HttpExchangeState::handle(const HttpHandler& handler) {
  // A handler that throws lets the exchange go, which answers 500.
  auto exchange = std::make_shared<StateExchange>(shared_from_this());
  post([handler, exchange = std::move(exchange)]() mutable { handler(std::move(exchange)); });
}

void HttpExchangeState::respond(HttpResponse response) {
  Callback unneeded;  // let go without the lock: it may hold the exchange
  const std::lock_guard lock(mu_);
  TANDEM_CHECK(status_ == 0, "an exchange is answered once");
  answer_locked(response, false);
  unneeded = finish_locked(!setup_.style.keep_alive);
}

void HttpExchangeState::begin_stream(HttpResponse response) {
  const std::lock_guard lock(mu_);
  TANDEM_CHECK(status_ == 0, "an exchange is answered once");
  answer_locked(response, true);
  wake_locked();
}

bool HttpExchangeState::write(const std::string& data) {
  Callback gone;
  {
    const std::lock_guard lock(mu_);
    TANDEM_CHECK(is_stream_ && !is_finished_, "write() belongs between begin_stream() and end()");
    if (is_gone_) return false;
    if (!setup_.is_head && !data.empty()) gone = append_locked(data);
    if (!is_gone_) return true;
  }
  post_if_any(std::move(gone));
  return false;
}

HttpExchangeState::Callback HttpExchangeState::append_locked(std::string_view data) {
  const bool is_first = unsent_bytes_ == 0;  // of what waits
  const size_t before = pending_.size();
  if (setup_.style.version >= 11) {
    append_http_chunk(pending_, data);
  } else {
    pending_ += data;
  }
  unsent_bytes_ += static_cast<int64_t>(pending_.size() - before);
  if (is_first && try_send_) {
    const size_t size = try_send_(pending_);
    pending_.erase(0, size);
    unsent_bytes_ -= static_cast<int64_t>(size);
    directly_sent_bytes_ += static_cast<int64_t>(size);
    if (pending_.empty()) return {};
  }
  Callback gone;
  if (unsent_bytes_ > setup_.max_unsent_bytes) {
    is_aborted_ = true;
    pending_ = {};
    is_woken_ = false;  // an earlier wake waits for the send that this one has to end
    gone = go_locked();
  }
  wake_locked();
  return gone;
}

void HttpExchangeState::end(bool is_complete) {
  Callback unneeded;
  const std::lock_guard lock(mu_);
  TANDEM_CHECK(is_stream_ && !is_finished_, "end() belongs once after begin_stream()");
  if (is_complete && !setup_.is_head && setup_.style.version >= 11) pending_ += kHttpLastChunk;
  unneeded = finish_locked(!is_complete || !setup_.style.keep_alive);
}

void HttpExchangeState::on_disconnect(std::function<void()> callback) {
  {
    const std::lock_guard lock(mu_);
    if (is_finished_) return;
    if (!is_gone_) {
      on_disconnect_.swap(callback);
      return;
    }
  }
  post(std::move(callback));
}

void HttpExchangeState::abandon() {
  bool is_unanswered = false;
  bool is_open_stream = false;
  {
    const std::lock_guard lock(mu_);
    is_unanswered = status_ == 0;
    is_open_stream = is_stream_ && !is_finished_;
  }
  if (is_unanswered) respond(http_error(500, "the server gave no answer"));
  if (is_open_stream) end(false);
}

void HttpExchangeState::attach(std::function<void()> wake, std::function<size_t(std::string_view)> try_send) {
  const std::lock_guard lock(mu_);
  wake_ = std::move(wake);
  try_send_ = std::move(try_send);
}

void HttpExchangeState::detach() {
  Callback gone;
  {
    const std::lock_guard lock(mu_);
    wake_ = nullptr;
    try_send_ = nullptr;
    if (!is_finished_) gone = go_locked();
  }
  post_if_any(std::move(gone));
}

void HttpExchangeState::client_gone() {
  Callback gone;
  {
    const std::lock_guard lock(mu_);
    if (!is_finished_) gone = go_locked();
  }
  post_if_any(std::move(gone));
}

HttpExchangeState::Pulled HttpExchangeState::pull() {
  const std::lock_guard lock(mu_);
  is_woken_ = false;
  return {std::exchange(pending_, {}), is_finished_, is_finished_ && !setup_.style.keep_alive, is_aborted_};
}

void HttpExchangeState::sent(int64_t bytes) {
  const std::lock_guard lock(mu_);
  unsent_bytes_ -= bytes;
}

bool HttpExchangeState::is_aborted() const {
  const std::lock_guard lock(mu_);
  return is_aborted_;
}

int HttpExchangeState::status() const {
  const std::lock_guard lock(mu_);
  return status_;
}

int64_t HttpExchangeState::directly_sent_bytes() const {
  const std::lock_guard lock(mu_);
  return directly_sent_bytes_;
}

void HttpExchangeState::answer_locked(const HttpResponse& response, bool is_stream) {
  status_ = response.status;
  is_stream_ = is_stream;
  HttpHeadStyle& style = setup_.style;
  if (wake_ && setup_.is_draining != nullptr && setup_.is_draining->load()) style.keep_alive = false;
  if (!is_stream) {
    style.body_bytes = static_cast<int64_t>(response.body.size());
  } else if (style.version < 11) {
    style.keep_alive = false;
  }
  pending_ = http_head(response, style);
  if (!setup_.is_head) {
    if (is_stream && style.version >= 11) {
      append_http_chunk(pending_, response.body);
    } else if (response.status != 204) {
      pending_ += response.body;
    }
  }
  unsent_bytes_ += static_cast<int64_t>(pending_.size());
}

HttpExchangeState::Callback HttpExchangeState::finish_locked(bool must_close) {
  is_finished_ = true;
  setup_.style.keep_alive = !must_close;
  wake_locked();
  return std::exchange(on_disconnect_, nullptr);
}

HttpExchangeState::Callback HttpExchangeState::go_locked() {
  is_gone_ = true;
  return std::exchange(on_disconnect_, nullptr);
}

void HttpExchangeState::post_if_any(Callback callback) {
  if (callback) post(std::move(callback));
}

void HttpExchangeState::wake_locked() {
  if (wake_ && !std::exchange(is_woken_, true)) wake_();
}

}  // namespace tandem

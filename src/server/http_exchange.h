// server/http_exchange.h: one HTTP request and its answer, whatever library carries them. Plain data and one class.
//
//   A handler gets the exchange after the whole body arrived within its limits, on a worker thread, and answers now or
//   later: respond() once, or begin_stream(), write()*, end(). Threading: any thread, one at a time for one exchange;
//   post() runs functions of one exchange one after another on a worker, in order.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // "GET"
  std::string path;     // percent-decoded, without the query: "/v1/models"
  std::string query;    // as sent, without '?'
  HttpHeaders headers;  // names in lower case
  std::string body;

  std::optional<std::string_view> header(std::string_view lower_case_name) const;  // the first of that name
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers;
  std::string body;
};

class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;

  // The whole answer. Ignored when the client is gone.
  virtual void respond(HttpResponse response) = 0;

  // An answer that grows: sent chunked, every write() flushed. `response.body` is its beginning.
  virtual void begin_stream(HttpResponse response) = 0;
  // False when the client is gone or reads so slowly that `max_unsent_bytes` wait: stop producing.
  virtual bool write(std::string data) = 0;
  // Complete: the last chunk, and the connection may be used again. Else it is closed.
  virtual void end(bool is_complete) = 0;

  // Called once, on a worker, when the client goes away before the answer is complete; at once when it has.
  virtual void on_disconnect(std::function<void()> callback) = 0;
  // Runs `task` on a worker after the tasks posted before it. Cheap enough for the engine's thread.
  virtual void post(std::function<void()> task) = 0;
};

using HttpHandler = std::function<void(std::shared_ptr<HttpExchange>)>;

}  // namespace tandem

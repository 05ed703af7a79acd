// server/api_server.h: the HTTP API over an engine: which handler answers which path and method.
//
//   Threading: handle() may be called from any thread, and for many exchanges at once. The engine, the tokenizer and
//   the observer outlive the server and every exchange it was given.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/api_context.h"
#include "server/http_exchange.h"

namespace tandem {

class ApiServer {
 public:
  // `metrics_text` gives the body of /metrics. kInvalidArgument: no served name. A tokenizer that speaks no chat format
  // is fine: chats are then refused, everything else works.
  static Result<ApiServer> create(EngineService& engine, const Tokenizer& tokenizer, ApiOptions options,
                                  RequestObserver* observer = nullptr, std::function<std::string()> metrics_text = {},
                                  ApiKeys keys = {});

  void handle(std::shared_ptr<HttpExchange> exchange) const;
  HttpHandler handler() const;  // a copy of the server: may outlive it

 private:
  explicit ApiServer(std::shared_ptr<const ApiContext> context) : context_(std::move(context)) {}
  std::shared_ptr<const ApiContext> context_;  // shared with the requests that run
};

}  // namespace tandem

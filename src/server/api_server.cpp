#include "server/api_server.h"

#include <string_view>
#include <utility>

#include "base/cat.h"
#include "server/chat_prompt.h"
#include "server/routes.h"

namespace tandem {
namespace {

struct Route {
  std::string_view method;
  std::string_view path;  // one that ends with '/' is followed by a name
  void (*handler)(RouteCall);
};

constexpr Route kRoutes[] = {
    {"POST", "/v1/chat/completions", chat_completions},
    {"POST", "/chat/completions", chat_completions},
    {"POST", "/v1/completions", completions},
    {"GET", "/v1/models", list_models},
    {"GET", "/v1/models/", show_model},
    {"POST", "/tokenize", tokenize},
    {"POST", "/detokenize", detokenize},
    {"POST", "/apply-template", apply_template},
    {"GET", "/health", health},
    {"GET", "/ping", health},
    {"GET", "/version", version},
    {"GET", "/metrics", metrics},
    {"GET", "/v1/cache/explain/", explain_cache},
    {"POST", "/v1/cache/lint", lint_cache},
};

bool fits(const Route& route, std::string_view path) {
  if (!route.path.ends_with('/')) return path == route.path;
  return path.starts_with(route.path) && path.size() > route.path.size();
}

ApiError unknown_route(const HttpRequest& request) {
  ApiError error;
  error.status = 404;
  error.type = "not_found_error";
  error.message = cat("No route ", request.method, " ", request.path);
  return error;
}

// A body that says it is something else than JSON is refused; one that says nothing is tried.
std::optional<ApiError> check_content_type(const HttpRequest& request) {
  ApiError error;
  error.status = 415;
  const auto encoding = request.header("content-encoding");
  if (encoding && !encoding->empty() && *encoding != "identity") {
    error.message = cat("content-encoding: expected none, found ", *encoding);
    return error;
  }
  const auto found = request.header("content-type");
  if (!found || found->empty()) return std::nullopt;
  std::string type(found->substr(0, found->find(';')));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  for (char& c : type) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  if (type == "application/json" || (type.starts_with("application/") && type.ends_with("+json"))) return std::nullopt;
  error.message = cat("content-type: expected application/json, found ", type);
  return error;
}

}  // namespace

std::optional<std::string> served_name(const ApiOptions& options, std::string_view request) {
  if (request.empty()) return options.served_names.front();
  for (const std::string& name : options.served_names) {
    if (name == request) return name;
  }
  return options.accept_any_model ? std::optional<std::string>(request) : std::nullopt;
}

Result<ApiServer> ApiServer::create(EngineService& engine, const Tokenizer& tokenizer, ApiOptions options,
                                    RequestObserver* observer, std::function<std::string()> metrics_text,
                                    ApiKeys keys) {
  if (options.served_names.empty()) return Status::invalid("served names: expected at least one, found none");
  auto context = std::make_shared<ApiContext>(ApiContext{
      engine, tokenizer, std::move(options), observer, std::move(metrics_text), std::move(keys), std::nullopt, {}});
  if (const auto format = detect_chat_format(tokenizer); format.is_ok()) {
    context->chat_format = format.value();
    context->channel_openers = channel_openers(tokenizer, format.value());
  }
  return ApiServer(std::move(context));
}

void ApiServer::handle(std::shared_ptr<HttpExchange> exchange) const {
  const HttpRequest& request = exchange->request();
  std::optional<std::string> owner = "";
  if (ApiKeys::needs_key(request.path)) owner = context_->keys.owner_of(request);
  if (!owner) return exchange->respond(ApiKeys::unauthorized());
  RouteCall call{context_, exchange, std::move(*owner), ""};
  std::string allowed;
  for (const Route& route : kRoutes) {
    if (!fits(route, request.path)) continue;
    // HEAD is GET to a handler; whoever carries the answer leaves its body out.
    if (route.method != request.method && !(route.method == "GET" && request.method == "HEAD")) {
      allowed += cat(allowed.empty() ? "" : ", ", route.method);
      continue;
    }
    if (route.method == "POST") {
      if (const auto error = check_content_type(request)) return call.respond(*error);
    }
    if (route.path.ends_with('/')) call.tail = request.path.substr(route.path.size());
    return route.handler(std::move(call));
  }
  if (allowed.empty()) return call.respond(unknown_route(request));
  ApiError error;
  error.status = 405;
  error.message = cat(request.method, " is not allowed on ", request.path, "; use ", allowed);
  HttpResponse response = error_response(error);
  response.headers.emplace_back("Allow", allowed);
  exchange->respond(std::move(response));
}

HttpHandler ApiServer::handler() const {
  return [server = *this](std::shared_ptr<HttpExchange> exchange) { server.handle(std::move(exchange)); };
}

}  // namespace tandem

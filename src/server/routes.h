// server/routes.h: the handlers of the API's routes and what they share. Part of api_server.h; not for others.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/api_context.h"
#include "server/api_error.h"
#include "server/http_exchange.h"
#include "text/json_value.h"

namespace tandem {

struct RouteCall {
  std::shared_ptr<const ApiContext> context;
  std::shared_ptr<HttpExchange> exchange;
  std::string owner;  // who asks, by API key (api_keys.h); "" when no key is needed
  std::string tail;   // of the path, where the route ends with a name

  void respond(std::string json) const;
  void respond(const ApiError& error) const;
};

// The body as a JSON object of which `model`, when stated, is served here; else the refusal was sent. `model` becomes
// the name to answer with.
std::optional<JsonValue> read_body(const RouteCall& call, std::string& model);

void chat_completions(RouteCall call);
void completions(RouteCall call);
void list_models(RouteCall call);
void show_model(RouteCall call);
void tokenize(RouteCall call);
void detokenize(RouteCall call);
void apply_template(RouteCall call);
void health(RouteCall call);
void version(RouteCall call);
void metrics(RouteCall call);
void explain_cache(RouteCall call);
void lint_cache(RouteCall call);

}  // namespace tandem

#include "server/routes.h"

#include <utility>

#include "text/field.h"

namespace tandem {

void RouteCall::respond(std::string json) const {
  HttpResponse response;
  response.body = std::move(json);
  exchange->respond(std::move(response));
}

void RouteCall::respond(const ApiError& error) const { exchange->respond(error_response(error)); }

std::optional<JsonValue> read_body(const RouteCall& call, std::string& model) {
  auto body = parse_json(call.exchange->request().body, "request");
  if (!body.is_ok()) {
    call.respond(bad_request(body.status()));
    return std::nullopt;
  }
  if (!body.value().is_object()) {
    call.respond(bad_request(bad_field("request", "an object", &body.value())));
    return std::nullopt;
  }
  std::string wanted;
  if (const Status status = read_string(body.value(), "model", "", wanted); !status.is_ok()) {
    call.respond(bad_request(status));
    return std::nullopt;
  }
  const auto served = served_name(call.context->options, wanted);
  if (!served) {
    call.respond(model_not_found(wanted));
    return std::nullopt;
  }
  model = *served;
  return std::move(body).value();
}

}  // namespace tandem

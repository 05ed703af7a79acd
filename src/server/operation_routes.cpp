// What a server tells of itself: models, health, version, metrics.
#include <utility>

#include "base/cat.h"
#include "server/routes.h"
#include "text/reply_json.h"

namespace tandem {
namespace {

std::string model_json(const ApiContext& context, std::string_view name) {
  return cat(R"({"id":")", json_escaped(name), R"(","object":"model","created":)", context.options.created,
             R"(,"owned_by":"tandem","root":")", json_escaped(context.options.served_names.front()),
             R"(","parent":null,"max_model_len":)", context.context_limit(), R"(,"permission":[]})");
}

}  // namespace

void list_models(RouteCall call) {
  std::string list;
  for (const std::string& name : call.context->options.served_names) {
    list += cat(list.empty() ? "" : ",", model_json(*call.context, name));
  }
  call.respond(cat(R"({"object":"list","data":[)", list, "]}"));
}

void show_model(RouteCall call) {
  for (const std::string& name : call.context->options.served_names) {
    if (name == call.tail) return call.respond(model_json(*call.context, name));
  }
  call.respond(model_not_found(call.tail));
}

void health(RouteCall call) {
  const EngineHealth health = call.context->engine.health();
  std::string problem = health.problem;
  if (!health.is_ready) {
    problem = "Loading model";
  } else if (health.is_draining) {
    problem = "Shutting down";
  } else if (problem.empty() && health.heartbeat_age_seconds > call.context->options.max_heartbeat_age_seconds) {
    problem = cat("The engine has not turned for ", static_cast<int64_t>(health.heartbeat_age_seconds), " seconds");
  }
  if (problem.empty()) return call.respond(std::string(R"({"status":"ok"})"));
  HttpResponse response;
  response.status = 503;
  response.body =
      cat(R"({"error":{"code":503,"message":")", json_escaped(problem), R"(","type":"unavailable_error"}})");
  call.exchange->respond(std::move(response));
}

void version(RouteCall call) {
  call.respond(cat(R"({"version":")", json_escaped(call.context->options.version), R"("})"));
}

void metrics(RouteCall call) {
  if (!call.context->metrics_text) {
    ApiError error;
    error.status = 404;
    error.type = "not_found_error";
    error.message = "This server keeps no metrics";
    return call.respond(error);
  }
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = call.context->metrics_text();
  call.exchange->respond(std::move(response));
}

}  // namespace tandem

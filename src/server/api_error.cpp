#include "server/api_error.h"

#include "base/cat.h"
#include "base/utf8.h"
#include "text/reply_json.h"

namespace tandem {
namespace {

std::string quoted_or_null(const std::optional<std::string>& text) {
  return text ? cat('"', json_escaped(*text), '"') : "null";
}

}  // namespace

std::string error_json(const ApiError& error) {
  return cat(R"({"error":{"message":")", json_escaped(replace_invalid_utf8(error.message)), R"(","type":")", error.type,
             R"(","param":)", quoted_or_null(error.param), R"(,"code":)", quoted_or_null(error.code), "}}");
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = error_json(error);
  if (error.retry_after_seconds) response.headers.emplace_back("Retry-After", cat(*error.retry_after_seconds));
  return response;
}

std::optional<std::string> field_of_message(std::string_view message) {
  const size_t colon = message.find(": ");
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  const std::string_view path = message.substr(0, colon);
  constexpr std::string_view kPathBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.[]";
  if (path.find_first_not_of(kPathBytes) != std::string_view::npos) return std::nullopt;
  if (path == "request" || path == "chat" || path == "reply") return std::nullopt;
  return std::string(path);
}

ApiError bad_request(const Status& status) {
  ApiError error;
  error.message = status.message();
  error.param = field_of_message(status.message());
  return error;
}

ApiError context_too_long(int64_t prompt_tokens, int64_t context_limit, std::string_view param) {
  ApiError error;
  error.message = cat("This model's maximum context length is ", context_limit, " tokens, one of them generated; the ",
                      param, " result in ", prompt_tokens, " tokens. Shorten the ", param, ".");
  error.param = std::string(param);
  error.code = "context_length_exceeded";
  return error;
}

ApiError model_not_found(std::string_view model) {
  ApiError error;
  error.status = 404;
  error.message = cat("The model \"", model, "\" does not exist on this server; GET /v1/models lists those that do.");
  error.param = "model";
  error.code = "model_not_found";
  return error;
}

ApiError submit_error(const Status& status, int64_t retry_after_seconds) {
  ApiError error = bad_request(status);
  switch (status.code()) {
    case StatusCode::kInvalidArgument: break;
    case StatusCode::kResourceExhausted:
      error.status = 429;
      error.type = "rate_limit_error";
      error.code = "engine_overloaded";
      error.param.reset();
      error.retry_after_seconds = retry_after_seconds;
      break;
    case StatusCode::kFailedPrecondition:
      error.status = 503;
      error.type = "unavailable_error";
      error.param.reset();
      error.retry_after_seconds = retry_after_seconds;
      break;
    default:
      error.status = 500;
      error.type = "server_error";
      error.param.reset();
      break;
  }
  return error;
}

ApiError run_error(const Status& status) {
  ApiError error;
  const bool is_cancelled = status.code() == StatusCode::kCancelled;
  error.status = is_cancelled ? 503 : 500;
  error.type = is_cancelled ? "unavailable_error" : "server_error";
  error.message = status.message();
  return error;
}

}  // namespace tandem

// server/api_error.h: refusals and failures in OpenAI's shape: {"error":{"message","type","param","code"}}.
//
//   A Status of a reader begins with the path of the field at fault (`messages[2].role: expected …`); that path becomes
//   `param`. Stateless: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "server/http_exchange.h"

namespace tandem {

struct ApiError {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string message;
  std::optional<std::string> param = std::nullopt;
  std::optional<std::string> code = std::nullopt;
  std::optional<int64_t> retry_after_seconds = std::nullopt;
};

std::string error_json(const ApiError& error);
HttpResponse error_response(const ApiError& error);

// The field that a message of the form `path: expected …` is about.
std::optional<std::string> field_of_message(std::string_view message);

ApiError bad_request(const Status& status);
ApiError context_too_long(int64_t prompt_tokens, int64_t context_limit, std::string_view param);
ApiError model_not_found(std::string_view model);
// What EngineService::submit refused.
ApiError submit_error(const Status& status, int64_t retry_after_seconds);
// What ended a request that was running.
ApiError run_error(const Status& status);

}  // namespace tandem

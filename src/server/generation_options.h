// server/generation_options.h: the fields that chat and completion requests share (sampling, length, stops, streaming).
//
//   A refusal is kInvalidArgument and begins with the field's name. Stateless: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/api_context.h"
#include "text/json_value.h"

namespace tandem {

inline constexpr size_t kMaxStopStrings = 16;

struct GenerationOptions {
  SamplingParams sampling = {};
  int64_t num_candidates = 1;
  std::optional<int64_t> max_tokens = std::nullopt;  // none: the room left in the context
  int64_t min_tokens = 0;
  std::vector<std::string> stop = {};
  bool include_stop = false;
  std::vector<TokenId> stop_token_ids = {};
  bool ignore_eos = false;
  std::optional<int32_t> logprobs = std::nullopt;  // set by the route: how many alternatives with each token
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool internal_content = false;  // token ids with each increment, as the vendor names them
  bool return_token_ids = false;
  bool skip_special_tokens = true;
  bool explain_cache = false;
  int32_t priority = 0;
  std::string cache_salt = "";
  std::string request_id = "";  // the client's own name of the request
};

Result<GenerationOptions> read_generation_options(const JsonValue& body, const ApiContext& context);

// Refuses what the hosted API of the model's vendor refuses.
Status check_strict_vendor(const JsonValue& body, const GenerationOptions& options);

// The engine's request for `prompt`; the prompt leaves at least one token of room.
EngineRequest engine_request(const GenerationOptions& options, const ApiContext& context, std::vector<TokenId> prompt);

}  // namespace tandem

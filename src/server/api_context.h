// server/api_context.h: what every route of the API knows: the engine, the tokenizer, how the server was set up.
//
//   Immutable once the server takes requests; engine, tokenizer and observer outlive it: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/service.h"
#include "server/api_keys.h"
#include "server/request_observer.h"
#include "text/chat_format.h"
#include "text/tokenizer.h"

namespace tandem {

struct ApiOptions {
  std::vector<std::string> served_names;  // at least one; the first answers a request that names no model
  bool accept_any_model = false;
  SamplingParams default_sampling = {};     // fields a request does not state
  std::vector<TokenId> stop_tokens = {};    // end a reply unless ignore_eos
  bool strict_vendor = false;               // refuse what the hosted API refuses
  bool copy_reasoning = false;              // `reasoning` next to `reasoning_content`
  bool stream_tool_arguments = false;       // arguments while they are written; a request may state its own
  bool explain_cache = false;               // usage.cache on every reply; else only when a request asks
  int64_t max_candidates = 128;             // of one request
  double max_heartbeat_age_seconds = 30.0;  // an engine that last turned longer ago is not healthy
  int64_t retry_after_seconds = 1;
  std::string version = "";
  int64_t created = 0;  // of the model, seconds since 1970
};

struct ApiContext {
  EngineService& engine;
  const Tokenizer& tokenizer;
  ApiOptions options;
  RequestObserver* observer = nullptr;                     // none: nobody counts
  std::function<std::string()> metrics_text = {};          // of /metrics; none: 404
  ApiKeys keys = {};                                       // who may ask; none: everybody
  std::optional<ChatFormat> chat_format = std::nullopt;    // none: the tokenizer speaks no chat format
  std::vector<std::vector<TokenId>> channel_openers = {};  // what a prompt's open channel ends with
  int64_t context_limit() const { return engine.facts().context_limit; }
};

// `request` when the server answers to it; the first served name when it is empty.
std::optional<std::string> served_name(const ApiOptions& options, std::string_view request);

}  // namespace tandem

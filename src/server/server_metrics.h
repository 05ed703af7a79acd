// server/server_metrics.h: what the server and its engine did, as Prometheus text. The names that dashboards for vLLM
// know, with the label model_name; what only Tandem has begins with "tandem:".
//
//   Any thread, several at once. The API's layer observes requests as they happen; everything else is read from the
//   engine's and the HTTP server's counters when a scrape comes. A counter never goes down, whatever it is fed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/service.h"
#include "server/http_server.h"

namespace tandem {

// One request, when its last candidate has finished.
struct RequestObservation {
  EngineFinish finish = EngineFinish::kStop;
  RequestTimes times;  // of what it never reached (aborted in the queue, say): 0, and it is not observed
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;                      // of all candidates
  std::optional<int64_t> max_tokens = std::nullopt;  // as the client asked
  int64_t num_candidates = 1;
};

class ServerMetrics {
 public:
  explicit ServerMetrics(const std::string& model_name);
  ~ServerMetrics();

  void observe(const RequestObservation& request);
  // As they are delivered: the first token of a request, seconds after it arrived, …
  void observe_first_token(double seconds);
  // … and `tokens` later ones of a candidate together, `seconds` after the token before them.
  void observe_inter_token(double seconds, int64_t tokens = 1);

  // The body of /metrics, content type kMetricsContentType.
  std::string render(const EngineMetrics& engine, const EngineHealth& health,
                     const std::optional<HttpServerStats>& http = std::nullopt);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

inline constexpr std::string_view kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace tandem

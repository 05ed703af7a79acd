// engine/service.h: the engine as a server sees it: requests in, tokens out. Plain data and one abstract class.
//
//   Threading: every method of EngineService may be called from any thread. A sink is called on the engine's thread, in
//   order, and must neither block, nor call back into the service, nor throw; after the output that carries `finish` of
//   the last candidate it is never called again, and it is then destroyed.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "cache/prefix_match.h"
#include "sample/logprobs.h"
#include "sample/sampler.h"

namespace tandem {

struct EngineRequest {
  std::string id;  // unique among the requests alive and remembered
  std::vector<TokenId> prompt;
  SamplingParams sampling;           // of every candidate; candidate i of a seeded request draws from its own stream
  std::optional<int32_t> logprobs;   // with each token: its log-probability and this many alternatives
  bool prompt_logprobs = false;      // also of the prompt's tokens; nothing is then taken from the cache
  int64_t num_candidates = 1;        // share the prompt's computation
  int64_t max_tokens = 1;            // generated ones of each candidate; clamped to the room in the context
  int64_t min_tokens = 0;            // stop tokens are not drawn before
  std::vector<TokenId> stop_tokens;  // end a candidate; the token itself is delivered
  int32_t priority = 0;              // lower is served first
  CacheScope scope;
};

struct TokenOutput {
  TokenId token;
  std::optional<float> logprob;   // of the raw logits, when wanted
  std::vector<TokenLogprob> top;  // the most probable ones, best first
};

enum class EngineFinish { kStop, kLength, kAbort, kError };

// Seconds of a monotonic clock of the engine's, by the request's life.
struct RequestTimes {
  double arrived = 0;
  double scheduled = 0;  // first time in a step
  double first_token = 0;
  double finished = 0;
};

struct EngineOutput {
  int64_t candidate = 0;
  std::vector<TokenOutput> tokens;     // new ones
  std::vector<TokenOutput> prompt;     // once, before the first token, with prompt_logprobs; [0] has no logprob
  std::optional<EngineFinish> finish;  // the candidate's last output
  Status error;                        // kError: why
  int64_t cached_tokens = 0;           // of the prompt, known from the first output on
  RequestTimes times;
};
using OutputSink = std::function<void(EngineOutput&&)>;

inline constexpr std::array<int64_t, 14> kStepTokenBounds = {1,   2,   4,   8,    16,   32,   64,
                                                             128, 256, 512, 1024, 2048, 4096, 8192};

// Counters since the start, and gauges.
struct EngineMetrics {
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t swapped = 0;
  double cache_usage = 0;  // share of blocks that have a user
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t prefix_query_tokens = 0;
  int64_t prefix_hit_tokens = 0;
  int64_t preemptions = 0;
  int64_t steps = 0;
  std::array<int64_t, kStepTokenBounds.size() + 1> steps_by_tokens = {};  // ≤ bound i; the last: above all
  int64_t step_tokens = 0;                                                // sum over steps
  // Pool.
  int64_t blocks_total = 0;
  int64_t blocks_free = 0;
  int64_t blocks_evictable = 0;
  int64_t blocks_evicted = 0;
  int64_t checkpoints = 0;
  int64_t checkpoints_taken = 0;
  int64_t checkpoints_skipped = 0;
  int64_t refused_checkpoints = 0;  // stored states whose bytes failed their proof when they were to be used
  int64_t refused_non_finite = 0;   // sequences whose states or latents were not numbers
  int64_t copied_bytes = 0;         // restores, copy-on-write, forks, swaps
  int64_t scrubbed_bytes = 0;       // of blocks taken into use
  int64_t audits = 0;               // of the whole cache, ServingOptions::audit_steps
  int64_t audits_failed = 0;
  // Resident bytes of the running requests, by kind; the dtype is cache_dtype.
  int64_t kda_state_bytes = 0;
  int64_t mla_latent_bytes = 0;
  int64_t padding_bytes = 0;
  std::string cache_dtype;
  // Verification of hits.
  double verify_rate_wanted = 0;
  int64_t verify_hits = 0;  // that could have been verified
  int64_t verify_done = 0;
  int64_t verify_skipped = 0;  // no idle budget
  int64_t verify_failed = 0;
  double verify_seconds = 0;
  double compute_seconds = 0;
  // Streamed experts; all 0 where every expert is in memory.
  int64_t expert_slots = 0;
  int64_t expert_hits = 0;
  int64_t expert_ahead = 0;  // being read when they were asked for
  int64_t expert_misses = 0;
  int64_t expert_bytes_read = 0;
  double expert_stall_seconds = 0;
};

struct EngineHealth {
  double heartbeat_age_seconds = 0;  // since the engine's loop last turned; it turns while idle too
  bool is_ready = false;
  bool is_draining = false;
  std::string problem;  // empty: none
};

struct CacheExplanation {
  std::string request_id;
  PrefixMatch match;
  std::string salt_used;             // "" when none was given; never the salt's text: "set"
  double prefill_token_seconds = 0;  // measured; what a missed token costs
  std::vector<TokenId> prompt;       // explained
};

struct ModelFacts {
  int64_t context_limit = 0;
  int64_t vocab_size = 0;
  int64_t hash_unit = 0;
};

class EngineService {
 public:
  virtual ~EngineService() = default;

  // kInvalidArgument: empty or too long prompt, ids outside the vocabulary, sampling parameters (the message says
  // which); kResourceExhausted: the queue is full; kFailedPrecondition: draining or stopped. The sink is called only
  // after ok.
  virtual Status submit(EngineRequest request, OutputSink sink) = 0;

  // Ends the request, or one candidate of it, within one step, wherever it is, with finish kAbort. What is unknown or
  // finished is ignored.
  virtual void cancel(const std::string& id, std::optional<int64_t> candidate = std::nullopt) = 0;

  // The match of a request that runs or ran not long ago, for its owner only. kNotFound.
  virtual Result<CacheExplanation> explain(const std::string& id, const std::string& owner) = 0;
  // The same for a prompt that was not sent.
  virtual Result<CacheExplanation> lint(std::vector<TokenId> prompt, const CacheScope& scope) = 0;

  virtual EngineMetrics metrics() const = 0;
  virtual EngineHealth health() const = 0;
  virtual ModelFacts facts() const = 0;

  // Takes no new request and returns when those it has are done, or after `seconds`, then cancelled.
  virtual void drain(double seconds) = 0;
};

}  // namespace tandem

#include "server/server_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <mutex>
#include <sstream>
#include <vector>

namespace tandem {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;

// 1, 2, 5, 10, … up to `last`.
std::vector<double> one_two_five(double first, double last) {
  std::vector<double> bounds;
  for (double decade = first; decade <= last; decade *= 10) {
    for (const double step : {1., 2., 5.}) {
      if (decade * step <= last) bounds.push_back(decade * step);
    }
  }
  return bounds;
}

// Seconds: 5 powers of ten below a first token of a small model, up to a day's queue of a large one.
std::vector<double> long_times() { return one_two_five(1e-3, 5e3); }
std::vector<double> short_times() { return one_two_five(1e-4, 100); }
std::vector<double> token_counts() { return one_two_five(1, 2e6); }

std::vector<double> step_token_bounds() { return {kStepTokenBounds.begin(), kStepTokenBounds.end()}; }

}  // namespace

struct ServerMetrics::Impl {
  explicit Impl(const std::string& model_name) : constant{{"model_name", model_name}} {}

  Gauge& gauge(const std::string& name, const std::string& help, const Labels& labels = {}) {
    return prometheus::BuildGauge().Name(name).Help(help).Labels(constant).Register(registry).Add(labels);
  }
  Counter& counter(const std::string& name, const std::string& help, const Labels& labels = {}) {
    return prometheus::BuildCounter().Name(name).Help(help).Labels(constant).Register(registry).Add(labels);
  }
  Histogram& histogram(const std::string& name, const std::string& help, const std::vector<double>& bounds) {
    return prometheus::BuildHistogram().Name(name).Help(help).Labels(constant).Register(registry).Add({}, bounds);
  }

  // Raises a counter to a total kept elsewhere; a total that has gone down leaves it.
  static void raise(Counter& counter, double total) {
    const double missing = total - counter.Value();
    if (missing > 0) counter.Increment(missing);
  }
  static void raise(Counter& counter, int64_t total) { raise(counter, static_cast<double>(total)); }
  static void set(Gauge& gauge, int64_t value) { gauge.Set(static_cast<double>(value)); }

  void read_requests(const EngineMetrics& engine);
  void read_steps(const EngineMetrics& engine);
  void read_cache(const EngineMetrics& engine);
  void read_verification(const EngineMetrics& engine);
  void read_resident(const EngineMetrics& engine);
  void read_http(const HttpServerStats& http);

  const Labels constant;
  prometheus::Registry registry;
  std::mutex render_mu;  // one scrape at a time raises the counters

  // ---- requests, observed ----
  const std::string success_help = "Requests that ended, by the reason.";
  Counter& success_stop = counter("vllm:request_success_total", success_help, {{"finished_reason", "stop"}});
  Counter& success_length = counter("vllm:request_success_total", success_help, {{"finished_reason", "length"}});
  Counter& success_abort = counter("vllm:request_success_total", success_help, {{"finished_reason", "abort"}});
  Counter& success_error = counter("vllm:request_success_total", success_help, {{"finished_reason", "error"}});
  Histogram& first_token =
      histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.", long_times());
  Histogram& inter_token =
      histogram("vllm:inter_token_latency_seconds", "Between one token and the next.", short_times());
  Histogram& per_output_token =
      histogram("vllm:time_per_output_token_seconds", "Older name of vllm:inter_token_latency_seconds.", short_times());
  Histogram& end_to_end =
      histogram("vllm:e2e_request_latency_seconds", "From arrival to the last token.", long_times());
  Histogram& queue = histogram("vllm:request_queue_time_seconds", "From arrival to the first step.", long_times());
  Histogram& prefill =
      histogram("vllm:request_prefill_time_seconds", "From the first step to the first token.", long_times());
  Histogram& decode = histogram("vllm:request_decode_time_seconds", "From the first token to the last.", long_times());
  Histogram& inference =
      histogram("vllm:request_inference_time_seconds", "From the first step to the last token.", long_times());
  Histogram& request_prompt = histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", token_counts());
  Histogram& request_generation =
      histogram("vllm:request_generation_tokens", "Generated tokens of a request.", token_counts());
  Histogram& params_max_tokens =
      histogram("vllm:request_params_max_tokens", "max_tokens of a request, where given.", token_counts());
  Histogram& params_n = histogram("vllm:request_params_n", "Candidates of a request.", one_two_five(1, 100));

  // ---- the engine's counters ----
  Gauge& running = gauge("vllm:num_requests_running", "Requests in the running batch.");
  Gauge& waiting = gauge("vllm:num_requests_waiting", "Requests that wait to run.");
  Gauge& swapped = gauge("vllm:num_requests_swapped", "Preempted requests whose cache lies aside.");
  Gauge& cache_usage = gauge("vllm:kv_cache_usage_perc", "Share of the pool's blocks that have a user, 0 to 1.");
  Counter& prompt_tokens = counter("vllm:prompt_tokens_total", "Prompt tokens taken in.");
  Counter& generation_tokens = counter("vllm:generation_tokens_total", "Tokens generated.");
  Counter& prefix_queries = counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the cache.");
  Counter& prefix_hits = counter("vllm:prefix_cache_hits_total", "Prompt tokens taken from the cache.");
  Counter& preemptions = counter("vllm:num_preemptions_total", "Preemptions of running requests.");
  Histogram& iteration_tokens =
      histogram("vllm:iteration_tokens_total", "Tokens of a step of the engine.", step_token_bounds());
  Counter& steps = counter("tandem:engine_steps_total", "Steps of the engine.");
  Gauge& heartbeat = gauge("tandem:engine_heartbeat_age_seconds", "Since the engine's loop last turned.");
  Gauge& ready = gauge("tandem:engine_ready", "1 when the engine takes requests.");

  const std::string blocks_help = "Blocks of the pool.";
  Gauge& blocks_total = gauge("tandem:pool_blocks", blocks_help, {{"state", "total"}});
  Gauge& blocks_free = gauge("tandem:pool_blocks", blocks_help, {{"state", "free"}});
  Gauge& blocks_evictable = gauge("tandem:pool_blocks", blocks_help, {{"state", "evictable"}});
  Counter& blocks_evicted = counter("tandem:pool_blocks_evicted_total", "Blocks whose prefix was evicted.");
  Gauge& checkpoints = gauge("tandem:checkpoints", "KDA states kept to resume from.");
  Counter& checkpoints_taken = counter("tandem:checkpoints_taken_total", "KDA checkpoints written.");
  Counter& checkpoints_skipped =
      counter("tandem:checkpoints_skipped_total", "KDA checkpoints not written for want of room.");
  const std::string refused_help = "Stored states that failed their checksum; sequences that were not finite.";
  Counter& refused_checksum = counter("tandem:cache_refused_total", refused_help, {{"reason", "checksum"}});
  Counter& refused_non_finite = counter("tandem:cache_refused_total", refused_help, {{"reason", "non_finite"}});
  Counter& copied_bytes = counter("tandem:cache_copied_bytes_total", "Restores, copies on write, forks and swaps.");
  Counter& scrubbed_bytes = counter("tandem:cache_scrubbed_bytes_total", "Cleared in blocks before their use.");
  const std::string audit_help = "Audits of the whole cache, by the outcome.";
  Counter& audits_sound = counter("tandem:cache_audits_total", audit_help, {{"result", "sound"}});
  Counter& audits_failed = counter("tandem:cache_audits_total", audit_help, {{"result", "failed"}});

  const std::string verify_help = "Cache hits recomputed from scratch, by the outcome.";
  Gauge& verify_wanted = gauge("tandem:verify_wanted_rate", "Share of hits that are to be verified.");
  Gauge& verify_achieved = gauge("tandem:verify_achieved_rate", "Share of hits that were verified.");
  Counter& verify_hits = counter("tandem:verify_hits_total", "Hits that could have been verified.");
  Counter& verify_done = counter("tandem:verify_total", verify_help, {{"result", "done"}});
  Counter& verify_skipped = counter("tandem:verify_total", verify_help, {{"result", "skipped"}});
  Counter& verify_failed = counter("tandem:verify_total", verify_help, {{"result", "failed"}});
  Counter& verify_seconds = counter("tandem:verify_seconds_total", "Compute spent on verifying.");
  Counter& compute_seconds = counter("tandem:compute_seconds_total", "Compute spent on steps.");
  static constexpr const char* experts_help = "Experts that steps asked for, of a model that streams them from disk.";
  Gauge& expert_slots = gauge("tandem:expert_slots", "Streamed experts that memory holds at most.");
  Counter& expert_hits = counter("tandem:experts_total", experts_help, {{"result", "hit"}});
  Counter& expert_ahead = counter("tandem:experts_total", experts_help, {{"result", "ahead"}});
  Counter& expert_misses = counter("tandem:experts_total", experts_help, {{"result", "miss"}});
  Counter& expert_bytes = counter("tandem:expert_read_bytes_total", "Read from disk for streamed experts.");
  Counter& expert_stalls = counter("tandem:expert_stall_seconds_total", "Waited for reads of streamed experts.");

  prometheus::Family<Gauge>& resident = prometheus::BuildGauge()
                                            .Name("tandem:resident_bytes")
                                            .Help("Bytes that running requests keep, by kind and dtype.")
                                            .Labels(constant)
                                            .Register(registry);
  prometheus::Family<Gauge>& resident_each = prometheus::BuildGauge()
                                                 .Name("tandem:resident_bytes_per_request")
                                                 .Help("tandem:resident_bytes over the running requests.")
                                                 .Labels(constant)
                                                 .Register(registry);

  // ---- HTTP ----
  Gauge& http_connections = gauge("tandem:http_connections", "Open connections.");
  Gauge& http_exchanges = gauge("tandem:http_exchanges", "Requests that are not fully answered.");
  Counter& http_accepted = counter("tandem:http_connections_total", "Connections accepted.");
  Counter& http_refused = counter("tandem:http_connections_refused_total", "Connections over the limit.");

  std::vector<double> seen_steps = std::vector<double>(kStepTokenBounds.size() + 1, 0.);  // in iteration_tokens
  double seen_step_tokens = 0;
};

void ServerMetrics::Impl::read_requests(const EngineMetrics& engine) {
  set(running, engine.running);
  set(waiting, engine.waiting);
  set(swapped, engine.swapped);
  raise(prompt_tokens, engine.prompt_tokens);
  raise(generation_tokens, engine.generated_tokens);
  raise(preemptions, engine.preemptions);
}

void ServerMetrics::Impl::read_steps(const EngineMetrics& engine) {
  raise(steps, engine.steps);
  std::vector<double> more(seen_steps.size(), 0.);
  for (size_t i = 0; i < seen_steps.size(); ++i) {
    more[i] = std::max(0., static_cast<double>(engine.steps_by_tokens[i]) - seen_steps[i]);
    seen_steps[i] += more[i];
  }
  const double more_tokens = std::max(0., static_cast<double>(engine.step_tokens) - seen_step_tokens);
  seen_step_tokens += more_tokens;
  iteration_tokens.ObserveMultiple(more, more_tokens);
}

void ServerMetrics::Impl::read_cache(const EngineMetrics& engine) {
  cache_usage.Set(engine.cache_usage);
  raise(prefix_queries, engine.prefix_query_tokens);
  raise(prefix_hits, engine.prefix_hit_tokens);
  set(blocks_total, engine.blocks_total);
  set(blocks_free, engine.blocks_free);
  set(blocks_evictable, engine.blocks_evictable);
  raise(blocks_evicted, engine.blocks_evicted);
  set(checkpoints, engine.checkpoints);
  raise(checkpoints_taken, engine.checkpoints_taken);
  raise(checkpoints_skipped, engine.checkpoints_skipped);
  raise(refused_checksum, engine.refused_checkpoints);
  raise(refused_non_finite, engine.refused_non_finite);
  raise(copied_bytes, engine.copied_bytes);
  raise(scrubbed_bytes, engine.scrubbed_bytes);
  raise(audits_sound, engine.audits - engine.audits_failed);
  raise(audits_failed, engine.audits_failed);
}

void ServerMetrics::Impl::read_verification(const EngineMetrics& engine) {
  verify_wanted.Set(engine.verify_rate_wanted);
  const double hits = static_cast<double>(engine.verify_hits);
  verify_achieved.Set(hits > 0 ? static_cast<double>(engine.verify_done) / hits : 0.);
  raise(verify_hits, engine.verify_hits);
  raise(verify_done, engine.verify_done);
  raise(verify_skipped, engine.verify_skipped);
  raise(verify_failed, engine.verify_failed);
  raise(verify_seconds, engine.verify_seconds);
  raise(compute_seconds, engine.compute_seconds);
  set(expert_slots, engine.expert_slots);
  raise(expert_hits, engine.expert_hits);
  raise(expert_ahead, engine.expert_ahead);
  raise(expert_misses, engine.expert_misses);
  raise(expert_bytes, engine.expert_bytes_read);
  raise(expert_stalls, engine.expert_stall_seconds);
}

void ServerMetrics::Impl::read_resident(const EngineMetrics& engine) {
  const auto read = [&](const char* kind, int64_t bytes) {
    const Labels labels{{"kind", kind}, {"dtype", engine.cache_dtype}};
    set(resident.Add(labels), bytes);
    const double each = engine.running > 0 ? static_cast<double>(bytes) / static_cast<double>(engine.running) : 0.;
    resident_each.Add(labels).Set(each);
  };
  read("kda_state", engine.kda_state_bytes);
  read("mla_latent", engine.mla_latent_bytes);
  read("padding", engine.padding_bytes);
}

void ServerMetrics::Impl::read_http(const HttpServerStats& http) {
  set(http_connections, http.connections);
  set(http_exchanges, http.exchanges);
  raise(http_accepted, http.accepted);
  raise(http_refused, http.refused);
}

ServerMetrics::ServerMetrics(const std::string& model_name) : impl_(std::make_unique<Impl>(model_name)) {}
ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::observe(const RequestObservation& request) {
  switch (request.finish) {
    case EngineFinish::kStop: impl_->success_stop.Increment(); break;
    case EngineFinish::kLength: impl_->success_length.Increment(); break;
    case EngineFinish::kAbort: impl_->success_abort.Increment(); break;
    case EngineFinish::kError: impl_->success_error.Increment(); break;
  }
  const RequestTimes& times = request.times;
  // 0 stands for "never"; a clock's own rounding must not make a negative time.
  const auto between = [](Histogram& histogram, double begin, double end) {
    if (begin > 0 && end > 0) histogram.Observe(std::max(0., end - begin));
  };
  between(impl_->end_to_end, times.arrived, times.finished);
  between(impl_->queue, times.arrived, times.scheduled);
  between(impl_->prefill, times.scheduled, times.first_token);
  between(impl_->decode, times.first_token, times.finished);
  between(impl_->inference, times.scheduled, times.finished);
  impl_->request_prompt.Observe(static_cast<double>(request.prompt_tokens));
  impl_->request_generation.Observe(static_cast<double>(request.generated_tokens));
  if (request.max_tokens) impl_->params_max_tokens.Observe(static_cast<double>(*request.max_tokens));
  impl_->params_n.Observe(static_cast<double>(request.num_candidates));
}

void ServerMetrics::observe_first_token(double seconds) { impl_->first_token.Observe(std::max(0., seconds)); }

void ServerMetrics::observe_inter_token(double seconds, int64_t tokens) {
  if (tokens <= 0) return;
  const double each = std::max(0., seconds) / static_cast<double>(tokens);
  for (int64_t i = 0; i < tokens; ++i) {
    impl_->inter_token.Observe(each);
    impl_->per_output_token.Observe(each);
  }
}

std::string ServerMetrics::render(const EngineMetrics& engine, const EngineHealth& health,
                                  const std::optional<HttpServerStats>& http) {
  const std::lock_guard lock(impl_->render_mu);
  impl_->read_requests(engine);
  impl_->read_steps(engine);
  impl_->read_cache(engine);
  impl_->read_verification(engine);
  impl_->read_resident(engine);
  impl_->heartbeat.Set(health.heartbeat_age_seconds);
  impl_->ready.Set(health.is_ready && !health.is_draining && health.problem.empty() ? 1. : 0.);
  if (http) impl_->read_http(*http);
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, impl_->registry.Collect());
  return std::move(out).str();
}

}  // namespace tandem

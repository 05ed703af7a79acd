#include "base/cat.h"
#include "engine/serving/engine_core.h"
#include "tensor/dtype.h"

namespace tandem {

void EngineCore::read_metrics(EngineMetrics& metrics) const {
  metrics.prompt_tokens = counters_.prompt_tokens;
  metrics.generated_tokens = counters_.generated_tokens;
  metrics.steps = counters_.steps;
  metrics.steps_by_tokens = counters_.steps_by_tokens;
  metrics.step_tokens = counters_.step_tokens;
  metrics.compute_seconds = counters_.compute_seconds;
  metrics.audits = counters_.audits;
  metrics.audits_failed = counters_.audits_failed;
  if (const ExpertStore* experts = model_.experts()) {
    const ExpertStoreStats stats = experts->stats();
    metrics.expert_slots = experts->num_slots();
    metrics.expert_hits = static_cast<int64_t>(stats.hits);
    metrics.expert_ahead = static_cast<int64_t>(stats.ahead);
    metrics.expert_misses = static_cast<int64_t>(stats.misses);
    metrics.expert_bytes_read = static_cast<int64_t>(stats.bytes_read);
    metrics.expert_stall_seconds = stats.stall_seconds;
  }

  const Scheduler::Counts counts = scheduler_->counts();
  metrics.running = counts.running;
  metrics.waiting = counts.waiting;
  metrics.swapped = counts.swapped;
  metrics.preemptions = counts.preemptions;

  const HybridCacheStats cache = cache_->stats();
  metrics.blocks_total = cache.num_blocks;
  metrics.blocks_free = cache.free_blocks;
  metrics.blocks_evictable = cache.evictable_blocks;
  metrics.blocks_evicted = cache.evicted_blocks;
  metrics.checkpoints = cache.checkpoints;
  metrics.checkpoints_taken = cache.checkpoints_taken;
  metrics.checkpoints_skipped = cache.checkpoints_skipped;
  metrics.refused_checkpoints = cache.refused_checkpoints;
  metrics.refused_non_finite = cache.refused_non_finite;
  metrics.copied_bytes = cache.copied_bytes;
  metrics.scrubbed_bytes = cache.scrubbed_bytes;
  metrics.prefix_query_tokens = cache.query_tokens;
  metrics.prefix_hit_tokens = cache.hit_tokens;
  const int64_t used = cache.num_blocks - cache.free_blocks - cache.evictable_blocks;
  metrics.cache_usage = cache.num_blocks == 0 ? 0 : static_cast<double>(used) / static_cast<double>(cache.num_blocks);
  metrics.cache_dtype = dtype_name(cache_->layout().dtype);

  metrics.verify_rate_wanted = options_.verify_rate;
  if (!verifier_) return;
  const VerifyCounts& verify = verifier_->counts();
  metrics.verify_hits = verify.hits;
  metrics.verify_done = verify.done;
  metrics.verify_skipped = verify.skipped;
  metrics.verify_failed = verify.failed;
  metrics.verify_seconds = verify.seconds;
  // The verifier looks its own prefixes up, which is no use of the cache by anybody.
  metrics.prefix_query_tokens -= verify.query_tokens;
  metrics.prefix_hit_tokens -= verify.hit_tokens;
}

void EngineCore::read_resident_bytes(EngineMetrics& metrics) const {
  const SequenceBytes bytes = memory_.resident_bytes();
  metrics.kda_state_bytes = bytes.kda_state;
  metrics.mla_latent_bytes = bytes.mla_latent;
  metrics.padding_bytes = bytes.padding;
}

// What the cache refused to share since the last call is a fault of memory or of a kernel: an operator should know.
void EngineCore::report_refusals() {
  const HybridCacheStats cache = cache_->stats();
  const auto report = [&](int64_t& reported, int64_t count, std::string_view what) {
    if (count == reported) return;
    if (options_.on_event) {
      options_.on_event({EventSeverity::kError, cat("cache: ", count - reported, " ", what, "; ", count, " so far")});
    }
    reported = count;
  };
  report(reported_checkpoints_, cache.refused_checkpoints,
         "stored states changed since they were written, and were dropped");
  report(reported_non_finite_, cache.refused_non_finite,
         "sequences hold states or latents that are not finite, and are not shared");
}

// Its invariants, checksums left out: those are proved whenever a state is used.
void EngineCore::audit_cache() {
  unaudited_steps_ = 0;
  ++counters_.audits;
  const Status status = cache_->audit(false);
  if (status.is_ok()) return;
  ++counters_.audits_failed;
  const std::string problem = cat("cache audit: ", status.message());
  if (problem != problem_) report_problem(problem);
}

void EngineCore::report_problem(const std::string& problem) {
  problem_ = problem;
  if (options_.on_event) options_.on_event({EventSeverity::kError, problem});
}

double EngineCore::prefill_token_seconds() const {
  constexpr int64_t kTypical = 1024;
  return scheduler_->step_time().predict_prefill(0, kTypical, options_.scheduler.token_budget) / kTypical;
}

}  // namespace tandem

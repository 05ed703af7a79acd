// engine/serving/verifier.h: proof at run time that the cache holds what a computation from scratch gives.
//
//   A sampled share of the hits is computed again, as a sequence that neither takes from the index nor adds to it, in
//   the modes that made the prefix (compute_path.h); every latent row of the hit, the KDA states at its end and the
//   logits of the prompt's last row must agree bit for bit. A mismatch is a fault of the engine: it is told to the
//   owner, dumped as JSON, and the prefix is quarantined from the first wrong unit on.
//
//   Cost     chunks of at most kMaxChunkSeconds by the scheduler's model of a step, so that a request that arrives
//            waits for one such chunk at most. After verify_quiet_seconds without a request, as many as there are; else
//            only within verify_busy_share of the compute time: a request that comes in a short gap hardly ever waits.
//   Memory   blocks of the pool that are free, or a quarter of what could be evicted: no more of other people's
//            prefixes is spent on a proof. They are given back when a request wants them, and the proof begins again
//            later.
//   A hit that cannot be verified for any of these reasons is skipped and counted. Threading: engine thread only.
#pragma once

#include <climits>
#include <deque>
#include <functional>
#include <string>
#include <unordered_map>

#include "cache/hybrid_cache.h"
#include "engine/loaded_model.h"
#include "engine/serving/cache_compare.h"
#include "engine/serving/cache_memory.h"
#include "engine/serving/compute_path.h"
#include "engine/serving/serving_options.h"
#include "sched/step_time.h"

namespace tandem {

// Sequence ids that only the verifier uses.
inline constexpr int32_t kFirstVerifierSequence = INT32_MAX - 1;

struct VerifyCounts {
  int64_t hits = 0;  // that could have been verified
  int64_t done = 0;  // without a mismatch or with one
  int64_t skipped = 0;
  int64_t failed = 0;
  double seconds = 0;
  double busy_seconds = 0;  // of these, while requests ran
  // What the verifier's own look-ups added to the cache's counters.
  int64_t query_tokens = 0;
  int64_t hit_tokens = 0;
};

// A hit to be verified.
struct VerifyJob {
  std::string request_id;
  std::vector<TokenId> tokens;  // the prompt
  CacheScope scope;
  int64_t hit = 0;
  PrefixHash hit_prefix;
  ComputePath path;           // of the whole prompt
  std::vector<float> logits;  // of its last row, as they were answered from
  int64_t num_interrupted = 0;
};

class Verifier final : public BlockLender {
 public:
  static constexpr double kMaxChunkSeconds = 0.005;

  // Borrows all; they outlive this.
  Verifier(LoadedModel& model, HybridCache& cache, const ServingOptions& options,
           std::function<void(const std::string&)> on_failure);

  // Life of the sequences of requests. `tokens` are those known. `may_verify`: this admission's hit counts.
  void on_admitted(SeqId id, const std::string& request_id, std::span<const TokenId> tokens, const CacheScope& scope,
                   const PrefixMatch& match, bool may_verify);
  void on_committed(SeqId id, std::span<const TokenId> tokens, int64_t begin, int64_t num_tokens, StepMode mode);
  void on_prompt_done(SeqId id, std::span<const TokenId> tokens, std::span<const float> logits);
  void on_forked(SeqId from, SeqId to);
  void forget(SeqId id);

  bool run_idle(const StepTime& step_time);                          // false: nothing to do
  bool run_busy(double compute_seconds, const StepTime& step_time);  // false: not now
  const VerifyCounts& counts() const { return counts_; }

  int64_t lent_blocks() const override { return lent_blocks_; }
  bool give_back() override;

 private:
  struct Tracked {  // a request's sequence
    std::string request_id;
    CacheScope scope;
    ComputePath path;
    PrefixHash prefix;          // of the whole units in the path
    int64_t prefix_tokens = 0;  // their tokens
    std::optional<int64_t> wanted_hit;
    PrefixHash hit_prefix;
  };

  void extend_prefix(Tracked& tracked, std::span<const TokenId> tokens) const;
  bool begin_job();
  enum class Memory { kTaken, kNoRoom, kGone };  // kGone: the cache has no such hit any more
  Memory take_memory(const VerifyJob& job);
  void leave_memory();
  void end_job();
  void skip_job();
  int64_t chunk_end(const StepTime& step_time) const;
  void run_chunk(int64_t end);
  std::optional<CacheMismatch> compare_chunk(int64_t begin, int64_t end, const SequenceCacheView& scratch);
  void fail(const CacheMismatch& mismatch);

  LoadedModel& model_;
  HybridCache& cache_;
  const ServingOptions& options_;
  std::function<void(const std::string&)> on_failure_;
  PathBook book_;
  std::unordered_map<int32_t, Tracked> tracked_;
  std::deque<VerifyJob> jobs_;
  bool is_active_ = false;  // jobs_.front() is being computed and holds blocks
  int64_t lent_blocks_ = 0;
  StepPlan plan_;
  uint64_t draw_seed_ = 0;
  VerifyCounts counts_;
};

// The reproducer of a failure: everything that a cold run needs to find the same element.
std::string verify_report_json(const VerifyJob& job, const CacheMismatch& mismatch, const LoadedModel& model,
                               const ServingOptions& options);

}  // namespace tandem

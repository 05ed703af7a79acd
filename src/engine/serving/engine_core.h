// engine/serving/engine_core.h: the requests of a serving engine and the steps that compute them; all on one thread.
//
//   A step: scheduler.plan → StepPlan with the cache's views and captures → Model::forward → sample → commit → tokens
//   to the scheduler. What a step found out is delivered to the sinks afterwards, by deliver(). A fault stays where it
//   is: logits that are not finite end their request, a forward that fails ends the requests in it, and their caches
//   are given up; the others go on. Threading: engine thread only; the draws of a step's rows run on the model's pool.
//   A warm decode step allocates nothing.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/hybrid_cache.h"
#include "engine/loaded_model.h"
#include "engine/serving/active_request.h"
#include "engine/serving/cache_memory.h"
#include "engine/serving/request_log.h"
#include "engine/serving/serving_options.h"
#include "engine/serving/verifier.h"
#include "sched/scheduler.h"

namespace tandem {

class EngineCore {
 public:
  // Borrows the model and the log; both outlive it. kInvalidArgument and kResourceExhausted as HybridCache::create, and
  // for what a serving option cannot be.
  static Result<std::unique_ptr<EngineCore>> create(LoadedModel& model, const ServingOptions& options, RequestLog& log);
  ~EngineCore();
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  Status check(const EngineRequest& request) const;                    // any thread: reads what never changes
  void start(EngineRequest request, OutputSink sink, double arrived);  // checked
  void cancel(const std::string& id, std::optional<int64_t> candidate);
  void end_all(EngineFinish finish, const Status& why);

  // False: there was nothing to compute, verification included.
  bool compute_step();
  void deliver();

  bool has_work() const { return scheduler_->has_work(); }
  int64_t num_alive() const { return static_cast<int64_t>(requests_.size()); }
  double now() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  PrefixMatch match(std::span<const TokenId> tokens, const CacheScope& scope) const {
    return cache_->match(tokens, scope);
  }
  void read_metrics(EngineMetrics& metrics) const;         // but for the resident bytes
  void read_resident_bytes(EngineMetrics& metrics) const;  // a walk over the running sequences
  double prefill_token_seconds() const;
  const std::string& problem() const { return problem_; }
  int64_t context_limit() const { return context_limit_; }
  HybridCache& cache() { return *cache_; }

 private:
  struct Delivery {
    ActiveRequest* request = nullptr;
    int64_t candidate = 0;
    std::optional<TokenId> token;
    std::optional<float> logprob;
    size_t top_begin = 0;  // in tops_
    size_t top_count = 0;
    std::optional<EngineFinish> finish;
    Status error;
  };
  struct StepRow {  // a sequence's part of the step
    ScheduledRows scheduled;
    SequenceOwner owner;
    int64_t logits_begin = 0;  // rows of the logits
    int64_t logits_count = 0;
    size_t draws_begin = 0;  // in draws_
    size_t draws_end = 0;
    Status error;
  };
  struct Draw {  // a candidate's token
    size_t row = 0;
    Candidate* candidate = nullptr;
    TokenId token;
    std::optional<float> logprob;
    size_t top_begin = 0;
    size_t top_count = 0;
  };

  struct SampleScratch {
    SamplerScratch sampler;
    std::vector<TokenLogprob> top;   // the vocabulary
    std::vector<float> stop_logits;  // put aside while min_tokens keeps them from being drawn
  };

  EngineCore(LoadedModel& model, const ServingOptions& options, RequestLog& log, std::unique_ptr<HybridCache> cache);

  // Requests.
  SeqId new_sequence(ActiveRequest& request, Candidate* candidate);
  void drop_sequence(SeqId id);
  Delivery& finish(ActiveRequest& request, Candidate& candidate, EngineFinish how, Status error);
  void end_lead_without_candidates(ActiveRequest& request);
  static bool shares_lead(const Candidate& candidate) { return !candidate.is_finished && !candidate.sequence; }

  bool verify_without_work();
  // A step, in this order.
  bool compute_rows();
  void note_admitted(const SchedulerStep& step);
  void build_plan(const SchedulerStep& step);
  void sample_rows(const MatrixView<float>& logits);
  void plan_draws(size_t index);
  Status read_prompt_logprobs(const StepRow& row, const MatrixView<float>& logits);
  Status sample_row(const StepRow& row, const MatrixView<float>& logits, SampleScratch& scratch);
  Status sample_candidate(const EngineRequest& request, Draw& draw, std::span<float> logits, SampleScratch& scratch);
  static std::span<float> last_logits(const StepRow& row, const MatrixView<float>& logits);
  void commit_rows(const MatrixView<float>& logits);
  void apply_rows();
  void apply_draws(StepRow& row, std::span<Draw> draws);
  std::optional<EngineFinish> finish_of(const ActiveRequest& request, const Candidate& candidate, TokenId token) const;
  void accept(ActiveRequest& request, const Draw& draw);
  void fail_row(const StepRow& row);
  void fail_step(const Status& why);
  void count_step();
  void report_refusals();
  void audit_cache();
  void report_problem(const std::string& problem);
  bool is_last_prompt_row(const StepRow& row) const;

  LoadedModel& model_;
  const ServingOptions& options_;
  RequestLog& log_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::unique_ptr<HybridCache> cache_;
  CacheMemory memory_;
  std::unique_ptr<Verifier> verifier_;  // null: no verification
  std::unique_ptr<Scheduler> scheduler_;
  int64_t context_limit_ = 0;
  std::string problem_;

  std::unordered_map<std::string, std::unique_ptr<ActiveRequest>> requests_;
  std::unordered_map<int32_t, SequenceOwner> owners_;
  int32_t last_sequence_ = 0;

  // Of the step in work; kept for their memory.
  StepPlan plan_;
  std::vector<SequenceCacheView> views_;
  std::vector<StepRow> rows_;
  std::vector<Draw> draws_;
  std::vector<TokenLogprob> tops_;      // of draws_ and deliveries_
  std::vector<SampleScratch> scratch_;  // of each thread of the pool
  std::vector<Delivery> deliveries_;

  int64_t unaudited_steps_ = 0;
  int64_t reported_checkpoints_ = 0;  // of HybridCacheStats::refused_*
  int64_t reported_non_finite_ = 0;
  double last_step_ = 0;    // when it ended
  EngineMetrics counters_;  // the counters of it
};

}  // namespace tandem

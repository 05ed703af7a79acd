// engine/serving/serving_engine.h: the engine as a service: any thread asks, one thread computes.
//
//   Calls become commands in a queue; the engine's thread takes them between two steps, computes a step, hands the
//   outputs to the sinks and publishes its numbers. Without work it sleeps and turns four times a second, so that its
//   heartbeat says that it could compute. EngineCore has the requests and the steps; this has the threads.
//   Threading: as EngineService; guarded by mu_. Without a thread of its own (ServingOptions::run_thread), step(),
//   lint() and drain() belong to one thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/loaded_model.h"
#include "engine/service.h"
#include "engine/serving/engine_core.h"
#include "engine/serving/request_log.h"
#include "engine/serving/serving_options.h"

namespace tandem {

class ServingEngine final : public EngineService {
 public:
  // Borrows the model, which nobody else may use meanwhile; it outlives the engine. Errors as EngineCore::create.
  static Result<std::unique_ptr<ServingEngine>> create(LoadedModel& model, ServingOptions options);
  // What still runs ends with kAbort.
  ~ServingEngine() override;
  ServingEngine(const ServingEngine&) = delete;
  ServingEngine& operator=(const ServingEngine&) = delete;

  Status submit(EngineRequest request, OutputSink sink) override;
  void cancel(const std::string& id, std::optional<int64_t> candidate = std::nullopt) override;
  Result<CacheExplanation> explain(const std::string& id, const std::string& owner) override;
  // Answered between two steps.
  Result<CacheExplanation> lint(std::vector<TokenId> prompt, const CacheScope& scope) override;
  EngineMetrics metrics() const override;
  EngineHealth health() const override;
  ModelFacts facts() const override;
  void drain(double seconds) override;

  // For an owner without the thread. One turn of the loop; false: there was nothing to compute. compute_step() and
  // deliver() are its halves.
  bool step();
  bool compute_step();
  void deliver();
  HybridCache& cache() { return core_->cache(); }

 private:
  struct LintCall {
    const std::vector<TokenId>& prompt;
    const CacheScope& scope;
    PrefixMatch match;
    bool is_done = false;
  };
  struct Command {
    enum class Kind { kStart, kCancel, kCancelAll, kLint };
    Kind kind = Kind::kStart;
    EngineRequest request;  // kCancel: its id
    OutputSink sink;
    double time = 0;
    std::optional<int64_t> candidate;
    LintCall* lint = nullptr;
  };

  ServingEngine(LoadedModel& model, ServingOptions options);

  void run() noexcept;  // the thread
  void loop();
  void stop_after(const std::string& problem);
  void post(Command command);
  void take_commands();
  void publish();
  void wait_for_work();
  void beat() { heartbeat_.store(core_->now(), std::memory_order_relaxed); }

  LoadedModel& model_;
  const ServingOptions options_;
  RequestLog log_;
  std::unique_ptr<EngineCore> core_;  // its step and requests: the engine's thread only

  mutable std::mutex mu_;
  std::condition_variable wake_;     // the engine: a command, or the end
  std::condition_variable changed_;  // callers: a step was published
  std::vector<Command> commands_;
  int64_t num_starting_ = 0;  // kStart among them
  int64_t num_alive_ = 0;     // submitted and not finished
  bool is_draining_ = false;
  bool is_stopping_ = false;
  bool is_stopped_ = false;
  EngineMetrics metrics_;
  double prefill_token_seconds_ = 0;
  std::string problem_;

  std::atomic<bool> has_commands_{false};
  std::atomic<double> heartbeat_{0};
  std::vector<Command> taken_;  // engine's thread; kept for its memory
  double bytes_read_at_ = -1;   // engine's thread
  std::thread thread_;
};

}  // namespace tandem

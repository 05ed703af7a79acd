#include "engine/serving/serving_engine.h"

#include <exception>

#include "base/cat.h"

namespace tandem {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr double kHeartbeatSeconds = 0.25;
constexpr double kRetrySeconds = 0.002;  // when there is work that cannot run now
constexpr double kBytesSeconds = 0.25;   // between two walks over the sequences' memory

}  // namespace

Result<std::unique_ptr<ServingEngine>> ServingEngine::create(LoadedModel& model, ServingOptions options) {
  auto engine = std::unique_ptr<ServingEngine>(new ServingEngine(model, std::move(options)));
  Result<std::unique_ptr<EngineCore>> core = EngineCore::create(model, engine->options_, engine->log_);
  if (!core.is_ok()) return core.status();
  engine->core_ = std::move(core).value();
  engine->beat();
  engine->publish();
  if (engine->options_.run_thread) {
    engine->thread_ = std::thread([&engine = *engine, &model] {
      model.bind_engine_thread();
      engine.run();
    });
  }
  return engine;
}

ServingEngine::ServingEngine(LoadedModel& model, ServingOptions options)
    : model_(model), options_(std::move(options)), log_(options_.remembered_requests, options_.remembered_tokens) {}

ServingEngine::~ServingEngine() {
  if (core_ == nullptr) return;
  {
    const std::lock_guard lock(mu_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  } else {
    stop_after("");
  }
}

// ---- any thread ----------------------------------------------------------------------------------------------------

Status ServingEngine::submit(EngineRequest request, OutputSink sink) {
  TANDEM_RETURN_IF_ERROR(core_->check(request));
  const std::string id = request.id;
  if (!log_.open(id, request.scope)) {
    return Status::invalid(cat("request id \"", id, "\" is taken by a request that runs or is remembered"));
  }
  const double now = core_->now();
  {
    const std::lock_guard lock(mu_);
    const int64_t waiting = metrics_.waiting + num_starting_;
    Status refusal;
    if (is_stopping_ || is_stopped_ || is_draining_) {
      refusal = Status::failed_precondition(is_draining_ ? "the engine is draining" : "the engine has stopped");
    } else if (waiting >= options_.scheduler.max_waiting) {
      refusal = Status::exhausted(
          cat("request queue: ", waiting, " requests wait, at most ", options_.scheduler.max_waiting, " may"));
    }
    if (!refusal.is_ok()) {
      log_.withdraw(id);
      return refusal;
    }
    ++num_starting_;
    ++num_alive_;
    commands_.push_back({.kind = Command::Kind::kStart,
                         .request = std::move(request),
                         .sink = std::move(sink),
                         .time = now,
                         .candidate = std::nullopt,
                         .lint = nullptr});
    has_commands_.store(true, std::memory_order_release);
  }
  wake_.notify_one();
  return Status::ok();
}

void ServingEngine::post(Command command) {
  {
    const std::lock_guard lock(mu_);
    commands_.push_back(std::move(command));
    has_commands_.store(true, std::memory_order_release);
  }
  wake_.notify_one();
}

void ServingEngine::cancel(const std::string& id, std::optional<int64_t> candidate) {
  Command command;
  command.kind = Command::Kind::kCancel;
  command.request.id = id;
  command.candidate = candidate;
  post(std::move(command));
}

Result<CacheExplanation> ServingEngine::explain(const std::string& id, const std::string& owner) {
  Result<CacheExplanation> explanation = log_.explain(id, owner);
  if (!explanation.is_ok()) return explanation;
  const std::lock_guard lock(mu_);
  explanation.value().prefill_token_seconds = prefill_token_seconds_;
  return explanation;
}

Result<CacheExplanation> ServingEngine::lint(std::vector<TokenId> prompt, const CacheScope& scope) {
  if (prompt.empty()) return Status::invalid("the prompt is empty: expected at least one token");
  LintCall call{.prompt = prompt, .scope = scope, .match = {}, .is_done = false};
  if (!options_.run_thread) {
    call.match = core_->match(prompt, scope);
  } else {
    std::unique_lock lock(mu_);
    if (is_stopping_ || is_stopped_) return Status::failed_precondition("the engine has stopped");
    Command command;
    command.kind = Command::Kind::kLint;
    command.lint = &call;
    commands_.push_back(std::move(command));
    has_commands_.store(true, std::memory_order_release);
    wake_.notify_one();
    changed_.wait(lock, [&] { return call.is_done || is_stopped_; });
    if (!call.is_done) return Status::failed_precondition("the engine has stopped");
  }
  const std::lock_guard lock(mu_);
  return CacheExplanation{.request_id = "",
                          .match = std::move(call.match),
                          .salt_used = scope.salt.empty() ? "" : "set",
                          .prefill_token_seconds = prefill_token_seconds_,
                          .prompt = std::move(prompt)};
}

EngineMetrics ServingEngine::metrics() const {
  const std::lock_guard lock(mu_);
  EngineMetrics metrics = metrics_;
  metrics.waiting += num_starting_;
  return metrics;
}

EngineHealth ServingEngine::health() const {
  const std::lock_guard lock(mu_);
  return {.heartbeat_age_seconds = core_->now() - heartbeat_.load(std::memory_order_relaxed),
          .is_ready = !is_stopping_ && !is_stopped_,
          .is_draining = is_draining_,
          .problem = problem_};
}

ModelFacts ServingEngine::facts() const {
  return {.context_limit = core_->context_limit(),
          .vocab_size = model_.config().vocab_size,
          .hash_unit = options_.hash_unit};
}

void ServingEngine::drain(double seconds) {
  const double end = core_->now() + seconds;
  std::unique_lock lock(mu_);
  is_draining_ = true;
  const auto is_done = [&] { return num_alive_ == 0 || is_stopped_; };
  if (!options_.run_thread) {
    while (!is_done() && core_->now() < end) {
      lock.unlock();
      step();
      lock.lock();
    }
    lock.unlock();
    core_->end_all(EngineFinish::kAbort, Status::ok());
    deliver();
    return;
  }
  if (changed_.wait_for(lock, Seconds(seconds), is_done)) return;
  Command command;
  command.kind = Command::Kind::kCancelAll;
  commands_.push_back(std::move(command));
  has_commands_.store(true, std::memory_order_release);
  wake_.notify_one();
  changed_.wait(lock, is_done);
}

// ---- the engine's thread -------------------------------------------------------------------------------------------

bool ServingEngine::step() {
  const bool has_computed = compute_step();
  deliver();
  return has_computed;
}

bool ServingEngine::compute_step() {
  beat();
  take_commands();
  return core_->compute_step();
}

void ServingEngine::deliver() {
  core_->deliver();
  publish();
}

void ServingEngine::take_commands() {
  if (!has_commands_.load(std::memory_order_acquire)) return;
  {
    const std::lock_guard lock(mu_);
    taken_.swap(commands_);
    num_starting_ = 0;
    has_commands_.store(false, std::memory_order_relaxed);
  }
  for (Command& command : taken_) {
    switch (command.kind) {
      case Command::Kind::kStart:
        core_->start(std::move(command.request), std::move(command.sink), command.time);
        break;
      case Command::Kind::kCancel: core_->cancel(command.request.id, command.candidate); break;
      case Command::Kind::kCancelAll: core_->end_all(EngineFinish::kAbort, Status::ok()); break;
      case Command::Kind::kLint: command.lint->match = core_->match(command.lint->prompt, command.lint->scope); break;
    }
  }
  // An answer to a call must not wait for the next step.
  core_->deliver();
  publish();
  {
    const std::lock_guard lock(mu_);
    for (const Command& command : taken_) {
      if (command.lint != nullptr) command.lint->is_done = true;
    }
  }
  changed_.notify_all();
  taken_.clear();
}

void ServingEngine::publish() {
  const double now = core_->now();
  const bool reads_bytes = bytes_read_at_ < 0 || now - bytes_read_at_ >= kBytesSeconds;
  const std::lock_guard lock(mu_);
  core_->read_metrics(metrics_);
  if (reads_bytes) core_->read_resident_bytes(metrics_);
  if (reads_bytes) bytes_read_at_ = now;
  prefill_token_seconds_ = core_->prefill_token_seconds();
  if (problem_ != core_->problem()) problem_ = core_->problem();
  const int64_t alive = core_->num_alive() + num_starting_;
  if (alive < num_alive_) changed_.notify_all();
  num_alive_ = alive;
}

void ServingEngine::wait_for_work() {
  const double seconds = core_->has_work() ? kRetrySeconds : kHeartbeatSeconds;
  std::unique_lock lock(mu_);
  wake_.wait_for(lock, Seconds(seconds), [this] { return !commands_.empty() || is_stopping_; });
}

void ServingEngine::loop() {
  const auto is_stopping = [this] {
    const std::lock_guard lock(mu_);
    return is_stopping_;
  };
  while (!is_stopping()) {
    if (!step()) wait_for_work();
  }
}

// The end of the thread, and a wall: an exception of a library, memory that is refused above all, stops here.
void ServingEngine::run() noexcept {
  std::string problem;
  try {
    loop();
  } catch (const std::exception& error) {
    problem = cat("the engine stopped: ", error.what());
  }
  if (!problem.empty() && options_.on_event) options_.on_event({EventSeverity::kError, problem});
  stop_after(problem);
}

void ServingEngine::stop_after(const std::string& problem) {
  {
    const std::lock_guard lock(mu_);
    is_stopping_ = true;
  }
  take_commands();
  const bool is_error = !problem.empty();
  core_->end_all(is_error ? EngineFinish::kError : EngineFinish::kAbort,
                 is_error ? Status(StatusCode::kResourceExhausted, problem) : Status::ok());
  core_->deliver();
  {
    const std::lock_guard lock(mu_);
    is_stopped_ = true;
    num_alive_ = 0;
    if (is_error) problem_ = problem;
  }
  changed_.notify_all();
}

}  // namespace tandem

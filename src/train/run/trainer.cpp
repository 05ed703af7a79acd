#include "train/run/trainer.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>

#include "base/cat.h"
#include "base/read_file.h"
#include "train/optim/schedule.h"
#include "train/run/bad_step.h"
#include "train/run/batch_prefetcher.h"
#include "train/run/device_choice.h"
#include "train/run/initial_model.h"
#include "train/run/loss_guard.h"
#include "train/run/run_lock.h"
#include "train/run/run_log.h"
#include "train/run/tokenizer_files.h"
#include "train/run/train_checkpoint.h"
#include "train/run/train_step.h"

namespace tandem::train {
namespace {

static_assert(kLoadWindowSteps == 64, "the log calls the load of a window expert_load_64");

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

OptimizerOptions optimizer_options(const Recipe& recipe) {
  return {.muon_momentum = recipe.optimizer.muon_momentum, .weight_decay = recipe.optimizer.weight_decay};
}

ForwardOptions forward_options(const Recipe& recipe, at::Device device) {
  const ComputeType compute = recipe.compute.value_or(device.is_cuda() ? ComputeType::kBf16 : ComputeType::kFp32);
  ForwardOptions options;
  options.compute = compute == ComputeType::kBf16 ? at::kBFloat16 : at::kFloat;
  options.mxfp4_experts = recipe.mxfp4_experts;
  options.mxfp8_activations = recipe.mxfp8_activations;
  options.recompute_sublayers = recipe.recompute_sublayers;
  return options;
}

// One run from its start, or from a checkpoint, to its end or an interruption.
class Trainer {
 public:
  Trainer(const Recipe& recipe, const TrainOptions& options, const RunData& data, TrainModel& model, at::Device device)
      : recipe_(recipe),
        options_(options),
        data_(data),
        model_(model),
        device_(device),
        optimizer_(model.config(), model.parameters(), optimizer_options(recipe)),
        balancer_(model, recipe.balancing),
        step_(model, optimizer_, balancer_, forward_options(recipe, device), device, recipe.optimizer.clip_norm,
              recipe.mtp_loss_weight.value_or(kDefaultMtpLossWeight)),
        schedule_{.peak = recipe.optimizer.learning_rate,
                  .num_steps = data.order().num_steps(),
                  .warmup_share = recipe.optimizer.warmup_share,
                  .final_share = recipe.optimizer.final_share},
        guard_(recipe.explode_factor),
        batch_options_{recipe.micro_batch_tokens, recipe.chunk_size, device.is_cuda()} {}

  // Takes over a checkpoint; nullptr starts at the first step. Call it once, before run().
  Status begin(const TrainCheckpoint* checkpoint, std::string identity) {
    state_.identity = std::move(identity);
    if (checkpoint != nullptr) {
      TANDEM_RETURN_IF_ERROR(restore_parameters(*checkpoint, model_));
      TANDEM_RETURN_IF_ERROR(restore_optimizer(*checkpoint, optimizer_));
      TANDEM_RETURN_IF_ERROR(restore_balancer(*checkpoint, balancer_));
      state_.step = checkpoint->state.step;
      state_.seconds = checkpoint->state.seconds;
      guard_ = LossGuard(recipe_.explode_factor, checkpoint->state.recent_losses);
      saved_step_ = state_.step;
    }
    first_step_ = state_.step;
    seconds_before_ = state_.seconds;
    Result<RunLog> log = RunLog::open(recipe_.run, state_.step);
    if (!log.is_ok()) return log.status();
    log_ = std::make_unique<RunLog>(std::move(log).value());
    return prepare_validation();
  }

  Result<TrainSummary> run() {
    start_ = Clock::now();
    const int64_t num_steps = data_.order().num_steps();
    BatchPrefetcher batches(data_, state_.step, batch_options_);
    while (state_.step < num_steps && !should_stop()) {
      Result<StepBatch> batch = batches.next();
      if (!batch.is_ok()) return batch.status();
      TANDEM_RETURN_IF_ERROR(take_step(batch.value()));
      const bool last = state_.step == num_steps;
      if (last || state_.step % recipe_.checkpoint_every_steps == 0) {
        TANDEM_RETURN_IF_ERROR(save(batch.value()));
      }
      if (recipe_.validation && (last || state_.step % recipe_.validation->every_steps == 0)) {
        TANDEM_RETURN_IF_ERROR(validate());
      }
      last_batch_ = std::move(batch).value();
    }
    if (state_.step != saved_step_) TANDEM_RETURN_IF_ERROR(save(last_batch_));
    return summary();
  }

 private:
  bool should_stop() const {
    if (options_.stop != nullptr && options_.stop->load()) return true;
    if (options_.max_steps && state_.step - first_step_ >= *options_.max_steps) return true;
    return options_.max_seconds && seconds_since(start_) >= *options_.max_seconds;
  }

  Status take_step(const StepBatch& batch) {
    const Clock::time_point begin = state_.step == first_step_ ? start_ : last_step_end_;
    const StepNumbers numbers = step_.gradients(batch);
    if (batch.num_trained > 0) {
      if (const auto reason = guard_.refusal(numbers.loss, numbers.grad_norm)) return refuse(*reason, numbers);
      guard_.accept(numbers.loss);
    }
    const double learning_rate = schedule_.at(state_.step);
    step_.apply(learning_rate);
    ++state_.step;
    last_step_end_ = Clock::now();
    state_.seconds = seconds_before_ + seconds_since(start_);
    const double step_seconds = std::chrono::duration<double>(last_step_end_ - begin).count();
    last_ = {.step = state_.step,
             .tokens = state_.step * recipe_.batch_tokens,
             .loss = numbers.loss,
             .learning_rate = learning_rate,
             .grad_norm = numbers.grad_norm,
             .tokens_per_second = static_cast<double>(batch.num_tokens) / std::max(step_seconds, 1e-9),
             .seconds = state_.seconds,
             .expert_load = numbers.expert_load,
             .expert_load_64 = balancer_.window_load(),
             .peak_memory_bytes = peak_memory_bytes(device_)};
    if (has_mtp(model_.config())) last_.mtp_loss = numbers.mtp_loss;
    TANDEM_RETURN_IF_ERROR(log_->write(last_));
    if (state_.step % recipe_.log_every_steps == 0 || state_.step == schedule_.num_steps) report();
    return Status::ok();
  }

  void report() const {
    const auto done = static_cast<double>(state_.step - first_step_);
    const double left = static_cast<double>(schedule_.num_steps - state_.step) * seconds_since(start_) / done;
    options_.progress(progress_line(last_, schedule_.num_steps, left));
  }

  // The step that comes next, or whose parameters a checkpoint would have held, is not good.
  Status refuse(const std::string& reason, const StepNumbers& numbers, bool after_update = false) {
    const int64_t step = after_update ? state_.step : state_.step + 1;
    const BadStep bad = {step, reason, numbers.loss, numbers.grad_norm, step_.gradient_norms(numbers.grad_norm)};
    const Result<std::string> path = write_bad_step(recipe_, data_, bad);
    std::string message = cat("step ", step, ": ", reason, ". The run has stopped; ");
    message += path.is_ok() ? cat("the step is described in ", path.value()) : path.status().message();
    const std::vector<int64_t> kept = list_checkpoints(recipe_.run);
    message += kept.empty() ? ". No checkpoint was written before it"
                            : cat(". The last good checkpoint is ", checkpoint_path(recipe_.run, kept.back()));
    return Status::non_finite(std::move(message));
  }

  Status save(const StepBatch& batch) {
    const MicroBatch& probe = batch.micro_batches.front();
    if (probe.num_trained() > 0) {
      const double loss = step_.loss_sum(probe) / static_cast<double>(probe.num_trained());
      if (const auto reason = guard_.refusal(loss, 0)) {
        return refuse(cat("after the update, ", *reason), {loss, 0, last_.grad_norm, {}}, /*after_update=*/true);
      }
    }
    state_.num_optimizer_steps = optimizer_.num_steps();
    state_.recent_losses = guard_.recent();
    state_.seconds = seconds_before_ + seconds_since(start_);
    TANDEM_RETURN_IF_ERROR(
        save_checkpoint(checkpoint_path(recipe_.run, state_.step), state_, model_, optimizer_, balancer_));
    saved_step_ = state_.step;
    return prune_checkpoints(recipe_.run, recipe_.checkpoint_keep);
  }

  Status prepare_validation() {
    const PackedSequences* sequences = data_.validation();
    if (sequences == nullptr) return Status::ok();
    const int64_t count = std::min(recipe_.validation->sequences, static_cast<int64_t>(sequences->size()));
    const auto read = [&](int64_t i, PackedSequence& out) { sequences->read(static_cast<uint64_t>(i), out); };
    Result<std::vector<MicroBatch>> batches = make_micro_batches(count, read, batch_options_);
    if (!batches.is_ok()) return batches.status();
    validation_ = std::move(batches).value();
    return Status::ok();
  }

  Status validate() {
    double sum = 0;
    int64_t trained = 0;
    for (const MicroBatch& batch : validation_) {
      sum += step_.loss_sum(batch);
      trained += batch.num_trained();
    }
    if (trained == 0) return Status::invalid("validation: expected a token with a target, found none");
    validation_loss_ = sum / static_cast<double>(trained);
    const ValidationRecord record = {state_.step, state_.step * recipe_.batch_tokens, *validation_loss_,
                                     seconds_before_ + seconds_since(start_)};
    options_.progress(progress_line(record, schedule_.num_steps));
    last_step_end_ = Clock::now();
    return log_->write(record);
  }

  TrainSummary summary() const {
    TrainSummary summary;
    summary.run = recipe_.run;
    summary.step = state_.step;
    summary.num_steps = schedule_.num_steps;
    summary.tokens = state_.step * recipe_.batch_tokens;
    if (state_.step > first_step_) summary.loss = last_.loss;
    summary.validation_loss = validation_loss_;
    summary.seconds = seconds_before_ + seconds_since(start_);
    summary.tokens_per_second =
        static_cast<double>((state_.step - first_step_) * recipe_.batch_tokens) / std::max(seconds_since(start_), 1e-9);
    if (state_.step > 0) summary.checkpoint = checkpoint_path(recipe_.run, state_.step);
    return summary;
  }

  const Recipe& recipe_;
  const TrainOptions& options_;
  const RunData& data_;
  TrainModel& model_;
  at::Device device_;
  Optimizer optimizer_;
  RouterBalancer balancer_;
  TrainStep step_;
  LearningRateSchedule schedule_;
  LossGuard guard_;
  BatchOptions batch_options_;
  std::unique_ptr<RunLog> log_;
  std::vector<MicroBatch> validation_;
  StepBatch last_batch_;
  TrainState state_;
  StepRecord last_;
  std::optional<double> validation_loss_;
  std::optional<int64_t> saved_step_;
  int64_t first_step_ = 0;
  double seconds_before_ = 0;
  Clock::time_point start_, last_step_end_;
};

// The checkpoint to go on from; nothing when the run has none yet. Damaged ones are set aside.
Result<std::optional<TrainCheckpoint>> checkpoint_to_resume(const Recipe& recipe, const TrainOptions& options,
                                                            const std::string& identity) {
  if (options.existing != ExistingRun::kResume || list_checkpoints(recipe.run).empty()) return {std::nullopt};
  std::vector<std::string> before;
  for (const int64_t step : list_checkpoints(recipe.run)) before.push_back(checkpoint_path(recipe.run, step));
  Result<TrainCheckpoint> newest = read_newest_checkpoint(recipe.run, options.progress);
  if (!newest.is_ok()) return newest.status();
  for (; before.back() != newest.value().path; before.pop_back()) {
    TANDEM_RETURN_IF_ERROR(set_aside_damaged(before.back()));
  }
  TANDEM_RETURN_IF_ERROR(check_identity(recipe.run, newest.value().state.identity, identity));
  return {std::move(newest).value()};
}

Result<TrainSummary> train_checked(const Recipe& recipe, const TrainOptions& options) {
  const Result<at::Device> device = choose_device(options.device);
  if (!device.is_ok()) return device.status();
  const c10::DeviceGuard on_device(device.value());
  const Result<std::string> config_json = read_file(recipe.model, "a model configuration");
  if (!config_json.is_ok()) return config_json.status();
  const Result<ModelConfig> config = parse_model_config(config_json.value(), recipe.model);
  if (!config.is_ok()) return config.status();
  TANDEM_RETURN_IF_ERROR(check_mtp(config.value()));
  if (recipe.mtp_loss_weight && !has_mtp(config.value())) {
    return Status::invalid("mtp_loss_weight: expected a model with num_nextn_predict_layers 1, found none");
  }
  if (recipe.mxfp8_activations) TANDEM_RETURN_IF_ERROR(check_mxfp8_widths(config.value()));
  TANDEM_RETURN_IF_ERROR(check_host_memory(device.value(), num_held_values(config.value())));
  if (!recipe.tokenizer.empty()) {
    const Status fits = check_tokenizer_files(recipe.tokenizer, config.value().vocab_size);
    if (!fits.is_ok()) return Status(fits.code(), cat("tokenizer: ", fits.message()));
  }
  const Result<RunData> data = RunData::open(recipe, config.value().vocab_size, config.value().pad_token_id);
  if (!data.is_ok()) return data.status();
  const Result<RunLock> lock = RunLock::take(recipe.run);
  if (!lock.is_ok()) return lock.status();
  TANDEM_RETURN_IF_ERROR(check_run_folder(recipe.run, options.existing));
  const std::string identity = run_identity(recipe, config_json.value(), data.value().fingerprints());
  const Result<std::optional<TrainCheckpoint>> checkpoint = checkpoint_to_resume(recipe, options, identity);
  if (!checkpoint.is_ok()) return checkpoint.status();
  const TrainCheckpoint* resumed = checkpoint.value() ? &*checkpoint.value() : nullptr;
  Result<TrainModel> model =
      resumed != nullptr ? TrainModel::random(config.value(), 0, InitStyle::kTraining, at::kFloat, device.value())
                         : initial_model(recipe, config.value(), device.value(), options.progress);
  if (!model.is_ok()) return model.status();
  // What cannot start has touched nothing.
  TANDEM_RETURN_IF_ERROR(prepare_run_folder(recipe.run, options.existing));
  TANDEM_RETURN_IF_ERROR(write_run_files(recipe, config_json.value()));
  Trainer trainer(recipe, options, data.value(), model.value(), device.value());
  TANDEM_RETURN_IF_ERROR(trainer.begin(resumed, identity));
  return trainer.run();
}

}  // namespace

Result<TrainSummary> train(const Recipe& recipe, const TrainOptions& options) {
  try {
    return train_checked(recipe, options);
  } catch (const std::exception& error) {  // LibTorch reports a full memory and a lost device this way
    std::string_view reason = error.what();
    reason = reason.substr(0, reason.find('\n'));
    constexpr std::string_view kAllocator = "DefaultCPUAllocator: ";  // behind the place in LibTorch's source
    if (const size_t at = reason.find(kAllocator); at != std::string_view::npos) {
      reason.remove_prefix(at + kAllocator.size());
    }
    return Status::exhausted(cat("training stopped: ", reason));
  }
}

}  // namespace tandem::train

#include "engine/loaded_model.h"

#include <algorithm>
#include <limits>

#include "base/cat.h"
#include "base/thread_placement.h"
#include "engine/memory_info.h"
#include "weights/checkpoint_check.h"

namespace tandem {
namespace {

// Without a stated limit a sequence may fill half of what is available now: weights are mapped and can be dropped.
int64_t context_limit_of(const ModelConfig& config, const CacheLayout& layout, std::optional<int64_t> requested) {
  if (requested) return *requested;
  if (config.max_position_embeddings) return *config.max_position_embeddings;
  const int64_t per_token = layout.latent_bytes_per_token();
  const int64_t available = available_memory_bytes();
  if (per_token == 0 || available == 0) return std::numeric_limits<int32_t>::max();
  return std::max<int64_t>(available / 2 / per_token, 1);
}

}  // namespace

LoadedModel::LoadedModel(std::string dir, ModelConfig config, Checkpoint checkpoint, KernelTable kernels,
                         const LoadOptions& options)
    : dir_(std::move(dir)),
      config_(std::move(config)),
      checkpoint_(std::move(checkpoint)),
      kernels_(kernels),
      cpus_(options.cpus),
      pool_(options.num_threads, options.cpus),
      exec_{pool_, arena_, kernels_} {}

Result<std::unique_ptr<LoadedModel>> LoadedModel::load(const std::string& model_dir, const LoadOptions& options) {
  if (options.context && *options.context < 1) {
    return Status::invalid(cat("context is ", *options.context, " tokens, expected at least 1"));
  }
  Result<ModelConfig> config = load_model_config(model_dir);
  if (!config.is_ok()) return config.status();
  Result<Checkpoint> checkpoint = Checkpoint::open(model_dir);
  if (!checkpoint.is_ok()) return checkpoint.status();
  Result<KernelTable> kernels = make_kernel_table(detect_cpu_features(), options.kernels);
  if (!kernels.is_ok()) return kernels.status();
  std::unique_ptr<LoadedModel> loaded(
      new LoadedModel(model_dir, std::move(config).value(), std::move(checkpoint).value(), kernels.value(), options));
  TANDEM_RETURN_IF_ERROR(loaded->bind(options));
  return loaded;
}

// In huge pages, but for what is streamed: all of it, or where memory is short the trunk alone.
Status LoadedModel::place_weights(const LoadOptions& options) {
  const bool is_int8 = options.trunk == TrunkFormat::kInt8;
  const bool is_streamed = streamed_ != nullptr;
  if (options.weights == WeightPlacement::kMapped || (is_streamed && streamed_->trunk() != nullptr)) {
    if (!is_int8) return Status::ok();
    return Status::invalid(cat(dir_, ": an int8 trunk is made in memory: expected resident weights",
                               is_streamed ? " and a budget that holds the trunk" : ", not mapped"));
  }
  const bool must = options.weights == WeightPlacement::kResident;
  const int64_t available = available_memory_bytes();  // 0: unknown
  for (const bool experts : {true, false}) {
    if (experts && is_streamed) continue;
    const ResidentOptions what{.experts = experts, .trunk = options.trunk};
    const auto needed = static_cast<int64_t>(ResidentWeights::bytes_needed(weights_, what));
    const bool last = must || (is_int8 && !experts);  // no smaller way to do what was asked
    // A budget has been divided with the trunk in it.
    if (!is_streamed && last && available > 0 && needed > available) {
      return Status::exhausted(cat(dir_, ": resident weights need ", needed, " bytes of memory, ", available,
                                   " are available; mapped weights need none of their own"));
    }
    if (!is_streamed && !last && needed > available - available / 10) continue;
    Result<ResidentWeights> resident = ResidentWeights::place(checkpoint_, what, pool_, weights_);
    if (resident.is_ok()) {
      resident_ = std::move(resident).value();
      return Status::ok();
    }
    if (last) return resident.status();
  }
  return Status::ok();
}

void LoadedModel::bind_engine_thread() const {
  if (!cpus_.empty()) bind_this_thread(cpus_.front());
}

// Of any step: what decides its scratch, but for the rows.
StepShape LoadedModel::step_shape(const LoadOptions& options) const {
  StepShape shape;
  shape.context = context_limit_;
  shape.threads = options.num_threads;
  shape.kernels = kernels_.backend;
  shape.streams_experts = true;
  shape.observed = true;  // there may be an observer
  shape.mxfp8_experts = options.model.expert_act == ExpertAct::kMxfp8;
  shape.bf16_activations = options.model.activation_dtype == DType::kBF16;
  return shape;
}

// Everything where it lies, or within a budget what stays and what is streamed.
Status LoadedModel::bind_weights(const LoadOptions& options) {
  const bool may_stream = may_not_fit(checkpoint_, options.memory);
  CheckpointReport report;
  Result<ModelWeights> weights =
      bind_model_weights(checkpoint_, config_, {.streamed_experts = may_stream, .report = &report});
  if (!weights.is_ok()) return weights.status();
  weights_ = std::move(weights).value();
  if (may_stream) {
    Result<std::unique_ptr<StreamedWeights>> streamed = StreamedWeights::fit(
        {checkpoint_, config_, cache_layout_, arena_, report, step_shape(options)}, weights_, options.memory);
    if (!streamed.is_ok()) return streamed.status();
    streamed_ = std::move(streamed).value();
    if (streamed_ == nullptr) TANDEM_RETURN_IF_ERROR(keep_experts(checkpoint_, config_, report, weights_));
  }
  for (const LayerWeights& layer : weights_.layers) {
    if (const auto* moe = std::get_if<MoeLayerWeights>(&layer.feed_forward)) {
      TANDEM_RETURN_IF_ERROR(
          check_expert_weights(moe->experts, config_.expert_input_size(), config_.moe_intermediate_size));
    }
  }
  return place_weights(options);
}

Status LoadedModel::bind(const LoadOptions& options) {
  cache_layout_ = make_cache_layout(config_, options.cache_dtype);
  Result<GenerationConfig> generation = load_generation_config(dir_);
  if (!generation.is_ok()) return generation.status();
  generation_config_ = std::move(generation).value();
  context_limit_ = context_limit_of(config_, cache_layout_, options.context);
  // A model without (or with a broken) tokenizer still runs on token ids: the fault is kept for whoever needs text.
  Result<Tokenizer> tokenizer = Tokenizer::load(dir_, config_.vocab_size);
  if (tokenizer.is_ok()) {
    tokenizer_.emplace(std::move(tokenizer).value());
  } else {
    tokenizer_status_ = tokenizer.status();
  }
  // Last: what the process holds without weights is known by now.
  TANDEM_RETURN_IF_ERROR(bind_weights(options));
  model_.emplace(config_, weights_, options.model, experts(), streamed_ != nullptr ? streamed_->trunk() : nullptr);
  return Status::ok();
}

Result<const Tokenizer*> LoadedModel::tokenizer() const {
  if (!tokenizer_) return tokenizer_status_;
  return &*tokenizer_;
}

std::vector<TokenId> LoadedModel::stop_tokens() const {
  std::vector<TokenId> stops;
  const auto add = [&](int32_t id) {
    if (id >= 0 && id < config_.vocab_size && std::find(stops.begin(), stops.end(), TokenId(id)) == stops.end()) {
      stops.emplace_back(id);
    }
  };
  for (const int32_t id : generation_config_.eos_token_ids) add(id);
  for (const int32_t id : config_.eos_token_ids) add(id);
  if (tokenizer_) {
    for (const std::string_view name : {"<|end_of_msg|>", "<|im_end|>", "[EOS]"}) {
      if (const std::optional<TokenId> id = tokenizer_->control_id(name)) add(id->value);
    }
  }
  return stops;
}

}  // namespace tandem

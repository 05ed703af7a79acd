#include "engine/loaded_model.h"

#include <algorithm>
#include <limits>

#include "base/cat.h"
#include "engine/memory_info.h"
#include "stream/direct_file.h"
#include "weights/checkpoint_check.h"

namespace tandem {
namespace {

// Enough to keep a fast drive busy with reads of this size; more would only let the last needed expert arrive before
// the first. Guesses meet fewer: one that is wrong delays what is needed by what is left of it.
constexpr unsigned kStreamQueueDepth = 8;
constexpr unsigned kStreamAheadDepth = 4;

int64_t promised_caches(const LoadOptions& options, int64_t budget) {
  return options.cache_bytes + static_cast<int64_t>(options.cache_share * static_cast<double>(budget));
}

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
      pool_(options.num_threads),
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

// What the parts of the model and the process take. The slot's bytes are those of an expert with the blocks around it,
// until the files have been looked at one by one.
Result<MemoryNeeds> LoadedModel::memory_needs(const LoadOptions& options, int64_t budget) const {
  const CheckpointReport report = check_checkpoint(checkpoint_, config_);
  TANDEM_RETURN_IF_ERROR(report.to_status(dir_));
  MemoryNeeds needs;
  needs.process = resident_bytes();
  needs.experts = static_cast<int64_t>(report.by_group[static_cast<size_t>(TensorGroup::kRoutedExpert)].bytes);
  needs.trunk = static_cast<int64_t>(report.text.bytes) - needs.experts;
  needs.scratch = scratch_bytes(config_, options.step_rows, options.step_sequences);
  needs.caches = promised_caches(options, budget) + cache_layout_.state_bytes() +
                 options.step_rows * cache_layout_.latent_bytes_per_token();
  for (int64_t l = 0; l < config_.num_hidden_layers; ++l)
    needs.num_experts += config_.is_moe(l) ? config_.num_experts : 0;
  if (needs.num_experts > 0)
    needs.slot = needs.experts / needs.num_experts + 2 * static_cast<int64_t>(kDirectAlignment);
  needs.least_slots = config_.num_experts_per_token;
  return needs;
}

// Without a budget, only a model larger than the memory that is there is looked at more closely: opening one that fits
// costs nothing.
Result<MemoryDecision> LoadedModel::decide_streaming(const LoadOptions& options) const {
  const int64_t available = available_memory_bytes();
  if (!options.ram_bytes && (available == 0 || static_cast<int64_t>(checkpoint_.total_bytes()) < available)) {
    return MemoryDecision{};
  }
  // A twentieth is left for what others of the machine take meanwhile.
  const int64_t room = available == 0 ? 0 : available - available / 20 + resident_bytes();
  const Result<MemoryNeeds> needs = memory_needs(options, options.ram_bytes.value_or(room));
  if (!needs.is_ok()) return needs.status();
  return decide_memory(needs.value(), options.ram_bytes, room);
}

Status LoadedModel::stream_experts(const MemoryDecision& decision, const LoadOptions& options) {
  Result<MemoryNeeds> needs = memory_needs(options, decision.budget);
  if (!needs.is_ok()) return needs.status();
  const Result<uint64_t> slot = ExpertStore::slot_bytes_of(checkpoint_, weights_);
  if (!slot.is_ok()) return slot.status();
  needs.value().slot = static_cast<int64_t>(slot.value());
  const Result<MemoryDecision> exact = decide_memory(needs.value(), decision.budget, 0);
  if (!exact.is_ok()) return exact.status();
  ExpertStore::Options store;
  store.num_slots = exact.value().num_slots;
  store.reader.queue_depth = kStreamQueueDepth;
  store.reader.ahead_depth = kStreamAheadDepth;
  Result<std::unique_ptr<ExpertStore>> created = ExpertStore::create(checkpoint_, config_, weights_, std::move(store));
  if (!created.is_ok()) return created.status();
  experts_ = std::move(created).value();
  promised_cache_bytes_ = promised_caches(options, decision.budget);
  keeper_.emplace(decision.budget, needs.value().scratch, *experts_, arena_);
  experts_->set_step_hook([this] {
    // Rows that were looked up leave their pages behind, and no step reads the same ones again.
    if (!config_.tie_word_embeddings) drop_embedding_pages();
    return keeper_->before_step(resident_bytes());
  });
  memory_summary_ = cat(describe(exact.value(), needs.value()), "; ", experts_->reader().description());
  return Status::ok();
}

void LoadedModel::drop_embedding_pages() const {
  const WeightView& table = weights_.embed_tokens;
  const std::span bytes(static_cast<const std::byte*>(table.data), static_cast<size_t>(table.total_bytes()));
  if (checkpoint_.place_of(table.data)) checkpoint_.drop_pages(bytes);
}

Status LoadedModel::bind(const LoadOptions& options) {
  cache_layout_ = make_cache_layout(config_, options.cache_dtype);
  const Result<MemoryDecision> decision = decide_streaming(options);
  if (!decision.is_ok()) return decision.status();
  Result<ModelWeights> weights =
      bind_model_weights(checkpoint_, config_, {.streamed_experts = decision.value().streamed});
  if (!weights.is_ok()) return weights.status();
  weights_ = std::move(weights).value();
  for (const LayerWeights& layer : weights_.layers) {
    if (const auto* moe = std::get_if<MoeLayerWeights>(&layer.feed_forward)) {
      TANDEM_RETURN_IF_ERROR(
          check_expert_weights(moe->experts, config_.expert_input_size(), config_.moe_intermediate_size));
    }
  }
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
  // Last: what the process holds by now is known, and the rest is the experts'.
  if (decision.value().streamed) TANDEM_RETURN_IF_ERROR(stream_experts(decision.value(), options));
  model_.emplace(config_, weights_, options.model, experts_.get());
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

#include "engine/streamed_weights.h"

#include <algorithm>

#include "base/cat.h"
#include "engine/memory_info.h"

namespace tandem {
namespace {

// Enough to keep a fast drive busy with reads of an expert's size; more would only let the last needed expert arrive
// before the first. Guesses meet fewer: one that is wrong delays what is needed by what is left of it.
constexpr unsigned kQueueDepth = 8;
constexpr unsigned kAheadDepth = 4;
// Pages of a mapped file that come with the one that was asked for (the system's default).
constexpr int64_t kFaultBytes = 65536;

// What the process may hold in all when no budget was asked for; 0: unknown. A twentieth is left for what others of the
// machine take meanwhile.
int64_t room_bytes() {
  const int64_t available = available_memory_bytes();
  return available == 0 ? 0 : available - available / 20 + resident_bytes();
}

int64_t promised_caches(const MemoryOptions& options, int64_t budget) {
  return options.cache_bytes + static_cast<int64_t>(options.cache_share * static_cast<double>(budget));
}

int64_t bytes_of(const CheckpointReport& report, TensorGroup group) {
  return static_cast<int64_t>(report.by_group[static_cast<size_t>(group)].bytes);
}

int64_t step_scratch_bytes(const StreamedWeights::Parts& parts, const ModelWeights& weights,
                           const MemoryOptions& options) {
  const ModelCost cost{.config = parts.config,
                       .weights = bound_weight_sizes(weights),
                       .cache = parts.cache_layout,
                       .path = AttentionPath::kFast};
  const int64_t logit_rows = options.step_logit_rows > 0 ? options.step_logit_rows : options.step_sequences;
  return most_scratch_bytes(
      cost, {.rows = options.step_rows, .sequences = options.step_sequences, .logit_rows = logit_rows}, parts.step);
}

Result<MemoryNeeds> needs_of(const StreamedWeights::Parts& parts, ModelWeights& weights, const MemoryOptions& options,
                             int64_t budget) {
  const ModelConfig& config = parts.config;
  const Result<uint64_t> slot = ExpertStore::slot_bytes_of(parts.checkpoint, weights);
  if (!slot.is_ok()) return slot.status();
  const Result<TrunkStream::Sizes> layers = TrunkStream::sizes(parts.checkpoint, weights);
  if (!layers.is_ok()) return layers.status();
  const int64_t embedding = bytes_of(parts.stored, TensorGroup::kEmbedding);
  MemoryNeeds needs;
  needs.process = resident_bytes();
  needs.experts = bytes_of(parts.stored, TensorGroup::kRoutedExpert);
  needs.trunk =
      static_cast<int64_t>(parts.stored.text.bytes) - needs.experts - (config.tie_word_embeddings ? 0 : embedding);
  needs.embedding = config.tie_word_embeddings ? 0 : embedding;
  needs.trunk_streamed = std::max<int64_t>(needs.trunk - static_cast<int64_t>(layers.value().streamed_bytes), 0) +
                         2 * static_cast<int64_t>(layers.value().buffer_bytes);
  needs.scratch = step_scratch_bytes(parts, weights, options) + std::min(embedding, options.step_rows * kFaultBytes);
  needs.caches = promised_caches(options, budget) + parts.cache_layout.state_bytes() +
                 options.step_rows * parts.cache_layout.latent_bytes_per_token();
  needs.slot = static_cast<int64_t>(slot.value());
  if (needs.slot == 0) return needs;
  needs.least_slots = config.num_experts_per_token;
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) needs.num_experts += config.is_moe(l) ? config.num_experts : 0;
  return needs;
}

}  // namespace

bool may_not_fit(const Checkpoint& checkpoint, const MemoryOptions& options) {
  if (options.ram_bytes) return true;
  const int64_t available = available_memory_bytes();
  return available != 0 && static_cast<int64_t>(checkpoint.total_bytes()) >= available;
}

Result<std::unique_ptr<StreamedWeights>> StreamedWeights::fit(const Parts& parts, ModelWeights& weights,
                                                              const MemoryOptions& options) {
  const int64_t room = room_bytes();
  const int64_t budget = options.ram_bytes.value_or(room);
  const Result<MemoryNeeds> needs = needs_of(parts, weights, options, budget);
  if (!needs.is_ok()) return needs.status();
  const Result<MemoryDecision> decision = decide_memory(needs.value(), options.ram_bytes, room);
  if (!decision.is_ok()) return decision.status();
  if (!decision.value().streamed) return std::unique_ptr<StreamedWeights>();
  std::unique_ptr<StreamedWeights> streamed(new StreamedWeights());
  streamed->budget_bytes_ = budget;
  streamed->promised_cache_bytes_ = promised_caches(options, budget);
  TANDEM_RETURN_IF_ERROR(streamed->start(parts, weights, needs.value(), decision.value()));
  return streamed;
}

Status StreamedWeights::start(const Parts& parts, ModelWeights& weights, const MemoryNeeds& needs,
                              const MemoryDecision& decision) {
  DirectReaderOptions reader;
  reader.queue_depth = kQueueDepth;
  reader.ahead_depth = kAheadDepth;
  summary_ = describe(decision, needs);
  if (decision.trunk_streamed) {
    Result<std::unique_ptr<TrunkStream>> trunk = TrunkStream::create(parts.checkpoint, weights, reader);
    if (!trunk.is_ok()) return trunk.status();
    trunk_ = std::move(trunk).value();
    summary_ += cat("; ", trunk_->reader().description());
  }
  if (needs.slot == 0) return Status::ok();
  ExpertStore::Options options;
  options.num_slots = decision.num_slots;
  options.policy = make_reuse_policy(parts.config.num_hidden_layers, parts.config.num_experts);
  options.reader = reader;
  Result<std::unique_ptr<ExpertStore>> store =
      ExpertStore::create(parts.checkpoint, parts.config, weights, std::move(options));
  if (!store.is_ok()) return store.status();
  experts_ = std::move(store).value();
  if (trunk_ == nullptr) summary_ += cat("; ", experts_->reader().description());
  keeper_.emplace(decision.budget, needs.scratch, *experts_, parts.arena);
  // Rows that were looked up leave their pages behind, and no step reads the same ones again. With tied embeddings the
  // head reads all of them, unless it is streamed.
  const bool drops_rows = trunk_ != nullptr || !parts.config.tie_word_embeddings;
  const WeightView table = weights.embed_tokens;
  const Checkpoint& checkpoint = parts.checkpoint;
  experts_->set_step_hook([this, drops_rows, table, &checkpoint] {
    const std::span rows(static_cast<const std::byte*>(table.data), static_cast<size_t>(table.total_bytes()));
    if (drops_rows && checkpoint.place_of(table.data)) checkpoint.drop_pages(rows);
    return keeper_->before_step(resident_bytes());
  });
  return Status::ok();
}

}  // namespace tandem

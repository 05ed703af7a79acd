#include "stream/expert_store.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/cat.h"
#include "base/check.h"

namespace tandem {
namespace {

const MoeLayerWeights* moe_of(const LayerWeights& layer) { return std::get_if<MoeLayerWeights>(&layer.feed_forward); }

std::vector<std::string> shard_paths(const Checkpoint& checkpoint) {
  std::vector<std::string> paths;
  for (uint32_t s = 0; s < checkpoint.num_shards(); ++s) paths.push_back(checkpoint.shard_path(s));
  return paths;
}

}  // namespace

Result<uint64_t> ExpertStore::slot_bytes_of(const Checkpoint& checkpoint, const ModelWeights& weights) {
  uint64_t largest = 0;
  for (const LayerWeights& layer : weights.layers) {
    const MoeLayerWeights* moe = moe_of(layer);
    if (moe == nullptr) continue;
    for (const ExpertWeights& expert : moe->experts) {
      const Result<ReadLayout> layout = ReadLayout::of(checkpoint, std::array{expert.w1, expert.w3, expert.w2});
      if (!layout.is_ok()) return layout.status();
      largest = std::max(largest, layout.value().slot_bytes);
    }
  }
  return largest;
}

Result<std::unique_ptr<ExpertStore>> ExpertStore::create(const Checkpoint& checkpoint, const ModelConfig& config,
                                                         const ModelWeights& weights, Options options) {
  const Result<uint64_t> bytes = slot_bytes_of(checkpoint, weights);
  if (!bytes.is_ok()) return bytes.status();
  if (bytes.value() == 0) return Status::invalid("a stream of experts for a model without routed experts");
  if (options.num_slots < config.num_experts_per_token) {
    return Status::invalid(cat("room for ", options.num_slots, " experts, expected at least the ",
                               config.num_experts_per_token, " that one token chooses in a layer"));
  }
  Result<std::unique_ptr<DirectReader>> reader = DirectReader::open(shard_paths(checkpoint), options.reader);
  if (!reader.is_ok()) return reader.status();
  Result<SlotMemory> memory = SlotMemory::create(options.num_slots, bytes.value());
  if (!memory.is_ok()) return memory.status();
  if (options.policy == nullptr) options.policy = make_lru_policy(config.num_hidden_layers, config.num_experts);
  return std::unique_ptr<ExpertStore>(new ExpertStore(checkpoint, weights, std::move(memory).value(),
                                                      std::move(reader).value(), std::move(options.policy),
                                                      config.num_experts_per_token));
}

ExpertStore::ExpertStore(const Checkpoint& checkpoint, const ModelWeights& weights, SlotMemory memory,
                         std::unique_ptr<DirectReader> reader, std::unique_ptr<ExpertPolicy> policy,
                         int64_t least_slots)
    : checkpoint_(checkpoint),
      memory_(std::move(memory)),
      policy_(std::move(policy)),
      least_slots_(least_slots),
      reader_(std::move(reader)) {
  for (const LayerWeights& layer : weights.layers) {
    Layer& made = layers_.emplace_back();
    const MoeLayerWeights* moe = moe_of(layer);
    if (moe == nullptr) continue;
    made.mapped = moe->experts;
    made.views = moe->experts;
    made.slot.assign(moe->experts.size(), kNone);
    made.hash.assign(moe->experts.size(), 0);
    total_experts_ += static_cast<int64_t>(moe->experts.size());
  }
  slots_.resize(static_cast<size_t>(memory_.num_slots()));
  for (auto slot = static_cast<int32_t>(slots_.size()); slot > 0; --slot) free_.push_back(slot - 1);
}

ExpertStoreStats ExpertStore::stats() const {
  ExpertStoreStats stats = stats_;
  const DirectReader::Stats& reads = reader_->stats();
  stats.bytes_read = reads.bytes;
  stats.stall_seconds = reads.wait_seconds;
  stats.busy_seconds = reads.busy_seconds;
  return stats;
}

namespace {

template <class Apply>
void combine(ExpertStoreStats& a, const ExpertStoreStats& b, Apply apply) {
  for (const auto field :
       {&ExpertStoreStats::steps, &ExpertStoreStats::needed, &ExpertStoreStats::hits, &ExpertStoreStats::ahead,
        &ExpertStoreStats::misses, &ExpertStoreStats::bytes_read, &ExpertStoreStats::bytes_unused,
        &ExpertStoreStats::predicted, &ExpertStoreStats::predicted_right, &ExpertStoreStats::predicted_needed}) {
    apply(a.*field, b.*field);
  }
  apply(a.stall_seconds, b.stall_seconds);
  apply(a.busy_seconds, b.busy_seconds);
}

}  // namespace

ExpertStoreStats& ExpertStoreStats::operator+=(const ExpertStoreStats& more) {
  combine(*this, more, [](auto& a, const auto& b) { a += b; });
  return *this;
}

ExpertStoreStats ExpertStoreStats::operator-(const ExpertStoreStats& before) const {
  ExpertStoreStats difference = *this;
  combine(difference, before, [](auto& a, const auto& b) { a -= b; });
  return difference;
}

// ---- a step ---------------------------------------------------------------------------------------------------------

Status ExpertStore::begin_step() {
  unpin(part_begin_, needed_.size());  // of a step that failed
  needed_.clear();
  issued_ = part_begin_ = part_end_ = 0;
  poll();
  return step_hook_ ? step_hook_() : Status::ok();
}

Status ExpertStore::begin(int64_t layer, std::span<const int32_t> needed) {
  TANDEM_CHECK(layer >= 0 && layer < static_cast<int64_t>(layers_.size()), "a layer of the model");
  TANDEM_CHECK(!layers_[static_cast<size_t>(layer)].slot.empty(), "a layer with experts");
  unpin(part_begin_, needed_.size());
  layer_ = layer;
  needed_.assign(needed.begin(), needed.end());
  issued_ = part_begin_ = part_end_ = 0;
  poll();
  policy_->on_step(layer, needed);
  count_step();
  pin_resident();
  drop_wrong_guesses();
  issue_reads();
  return Status::ok();
}

void ExpertStore::count_step() {
  ++stats_.steps;
  stats_.needed += needed_.size();
  for (size_t i = 0; i < needed_.size(); ++i) {
    const int32_t slot = slot_of(key_of(i));
    if (slot == kNone) {
      ++stats_.misses;
    } else if (slots_[static_cast<size_t>(slot)].state == SlotState::kReading) {
      ++stats_.ahead;
    } else {
      ++stats_.hits;
    }
  }
  if (predicted_layer_ != layer_) return;
  stats_.predicted += likely_.size();
  stats_.predicted_needed += needed_.size();
  for (const int32_t expert : likely_) {
    stats_.predicted_right += std::binary_search(needed_.begin(), needed_.end(), expert) ? 1 : 0;
  }
}

void ExpertStore::pin_resident() {
  for (size_t i = 0; i < needed_.size(); ++i) {
    const int32_t slot = slot_of(key_of(i));
    if (slot == kNone) continue;
    slots_[static_cast<size_t>(slot)].pinned = true;
    slots_[static_cast<size_t>(slot)].unused = false;
    if (slots_[static_cast<size_t>(slot)].state == SlotState::kReading) make_urgent(slot);
  }
}

void ExpertStore::drop_wrong_guesses() {
  if (!predicted_layer_) return;
  for (const int32_t expert : likely_) {
    const int32_t slot = slot_of({static_cast<int32_t>(*predicted_layer_), expert});
    if (slot == kNone) continue;
    slots_[static_cast<size_t>(slot)].predicted = false;
    if (!slots_[static_cast<size_t>(slot)].pinned) (void)cancel_reads(slot);
  }
  predicted_layer_.reset();
}

// Reads for what is needed and has no slot, in order, as far as there is room.
void ExpertStore::issue_reads() {
  for (; issued_ < needed_.size(); ++issued_) {
    const ExpertKey key = key_of(issued_);
    const int32_t resident = slot_of(key);
    if (resident != kNone) {
      slots_[static_cast<size_t>(resident)].pinned = true;
      continue;
    }
    const std::optional<int32_t> slot = take_slot(key, false);
    if (!slot) return;
    start_reads(*slot, key, false);
  }
}

// Everything that can have a slot has one, and the next expert has none. True: something gave its place.
bool ExpertStore::make_room() {
  for (size_t i = needed_.size(); i > issued_ + 1; --i) {
    const int32_t slot = slot_of(key_of(i - 1));
    if (slot == kNone || slots_[static_cast<size_t>(slot)].state != SlotState::kReady) continue;
    evict(slot);  // it comes last in this layer, and is read again when its turn comes
    return true;
  }
  for (int32_t slot = 0; slot < static_cast<int32_t>(slots_.size()); ++slot) {
    const Slot& candidate = slots_[static_cast<size_t>(slot)];
    if (candidate.state == SlotState::kReading && !candidate.pinned && cancel_reads(slot)) return true;
  }
  return false;
}

Result<std::optional<ExpertPart>> ExpertStore::next() {
  unpin(part_begin_, part_end_);
  part_begin_ = part_end_;
  if (part_end_ == needed_.size()) return std::optional<ExpertPart>();
  if (const Status status = prepare_next(); !status.is_ok()) {
    unpin(part_begin_, needed_.size());
    needed_.clear();
    issued_ = part_begin_ = part_end_ = 0;
    return status;
  }
  const auto is_ready = [this](size_t i) {
    const int32_t slot = i < issued_ ? slot_of(key_of(i)) : kNone;
    return slot != kNone && slots_[static_cast<size_t>(slot)].state == SlotState::kReady;
  };
  while (part_end_ < needed_.size() && is_ready(part_end_)) ++part_end_;
  const Layer& layer = layers_[static_cast<size_t>(layer_)];
  return std::optional<ExpertPart>(
      ExpertPart{needed_[part_begin_], int64_t{needed_[part_end_ - 1]} + 1, std::span(layer.views)});
}

// The first expert of the next part is in memory, or the reason why it cannot be.
Status ExpertStore::prepare_next() {
  poll();
  while (true) {
    issue_reads();
    if (issued_ == part_begin_) {
      if (make_room()) continue;
      if (reader_->num_pending() == 0) {
        return Status::io(cat("layer ", layer_, ", expert ", needed_[part_begin_],
                              ": no memory is left to read into: drives have not answered"));
      }
      wait_for_reads();
      continue;
    }
    const int32_t resident = slot_of(key_of(part_begin_));
    TANDEM_CHECK(resident != kNone, "an expert that is needed keeps its slot");
    Slot& slot = slots_[static_cast<size_t>(resident)];
    if (slot.state == SlotState::kReady) return Status::ok();
    if (slot.state == SlotState::kFailed) return slot.status;
    wait_for_reads();
  }
}

void ExpertStore::unpin(size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    const int32_t slot = slot_of(key_of(i));
    if (slot == kNone) continue;
    slots_[static_cast<size_t>(slot)].pinned = false;
    if (slots_[static_cast<size_t>(slot)].state == SlotState::kFailed) evict(slot);
  }
}

void ExpertStore::predict(int64_t layer, std::span<const int32_t> likely) {
  if (layers_[static_cast<size_t>(layer)].slot.empty()) return;
  poll();
  drop_wrong_guesses();
  predicted_layer_ = layer;
  likely_.assign(likely.begin(), likely.end());
  for (const int32_t expert : likely) {
    const int32_t slot = slot_of({static_cast<int32_t>(layer), expert});
    if (slot != kNone) slots_[static_cast<size_t>(slot)].predicted = true;
  }
  if (issued_ < needed_.size()) return;  // not even what is needed has room
  auto room = std::max<int64_t>(num_slots() / 4, 1);
  for (const int32_t expert : likely) {
    const ExpertKey key = {static_cast<int32_t>(layer), expert};
    if (slot_of(key) != kNone) continue;
    const std::optional<int32_t> slot = room-- > 0 ? take_slot(key, true) : std::nullopt;
    if (!slot) return;
    start_reads(*slot, key, true);
  }
}

}  // namespace tandem

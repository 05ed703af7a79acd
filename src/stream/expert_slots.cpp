// The slots of an ExpertStore: who gets one, and what becomes of the reads into it.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/cat.h"
#include "base/check.h"
#include "stream/expert_store.h"
#include "tensor/mxfp4.h"

namespace tandem {
namespace {
constexpr uint64_t kMaxExtents = 6;  // of an expert: its tensors
}  // namespace

std::optional<int32_t> ExpertStore::take_slot(ExpertKey incoming, bool speculative) {
  if (!free_.empty()) {
    const int32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  const auto stays = [this](ExpertKey key, bool for_guess) {
    const Slot& slot = slots_[static_cast<size_t>(slot_of(key))];
    return slot.state != SlotState::kReady || slot.pinned || (for_guess && slot.predicted);
  };
  // What will probably be needed next stays, but not at the cost of what is needed now.
  std::optional<ExpertKey> victim =
      policy_->victim(incoming, speculative, [&](ExpertKey key) { return stays(key, true); });
  if (!victim && !speculative) {
    victim = policy_->victim(incoming, false, [&](ExpertKey key) { return stays(key, false); });
  }
  if (!victim) return std::nullopt;
  evict(slot_of(*victim));
  const int32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void ExpertStore::start_reads(int32_t index, ExpertKey key, bool speculative) {
  Slot& slot = slots_[static_cast<size_t>(index)];
  const Layer& layer = layer_of(key);
  const ExpertWeights& mapped = layer.mapped[static_cast<size_t>(key.expert)];
  Result<ReadLayout> layout = ReadLayout::of(checkpoint_, std::array{mapped.w1, mapped.w3, mapped.w2});
  TANDEM_CHECK(layout.is_ok(), "an expert whose place was found when the store was made");
  slot = Slot{};
  slot.touched = true;
  slot.key = key;
  slot.state = SlotState::kReading;
  slot.pinned = !speculative;
  slot.predicted = slot.unused = speculative;
  slot.layout = std::move(layout).value();
  slot_of(key) = index;
  policy_->on_insert(key);
  for (size_t extent = 0; extent < slot.layout.extents.size(); ++extent) submit(index, extent, !speculative);
}

void ExpertStore::submit(int32_t index, size_t extent, bool urgent) {
  Slot& slot = slots_[static_cast<size_t>(index)];
  const ReadLayout::Extent& place = slot.layout.extents[extent];
  ++slot.reads_left;
  reader_->submit({place.shard, place.offset, memory_.slot(index).subspan(place.slot_offset, place.num_bytes),
                   static_cast<uint64_t>(index) * kMaxExtents + extent},
                  urgent);
}

// A guess that turned out right: its reads go to the front, those taken back are made again.
void ExpertStore::make_urgent(int32_t index) {
  Slot& slot = slots_[static_cast<size_t>(index)];
  for (size_t extent = 0; extent < slot.layout.extents.size(); ++extent) {
    if ((slot.cancelled >> extent & 1) != 0) {
      submit(index, extent, true);
    } else {
      reader_->promote(static_cast<uint64_t>(index) * kMaxExtents + extent);
    }
  }
  slot.cancelled = 0;
}

// Takes back the reads of a guess that have not begun. True: all of them, and the slot is free.
bool ExpertStore::cancel_reads(int32_t index) {
  Slot& slot = slots_[static_cast<size_t>(index)];
  if (slot.state != SlotState::kReading || !slot.unused) return false;
  for (size_t extent = 0; extent < slot.layout.extents.size(); ++extent) {
    if (!reader_->cancel(static_cast<uint64_t>(index) * kMaxExtents + extent)) continue;
    slot.cancelled |= static_cast<uint8_t>(1u << extent);
    --slot.reads_left;
  }
  if (slot.reads_left > 0) return false;
  slot.unused = false;  // nothing of it was read
  evict(index);
  return true;
}

void ExpertStore::evict(int32_t index) {
  Slot& slot = slots_[static_cast<size_t>(index)];
  TANDEM_CHECK(slot.reads_left == 0, "memory that is being read into keeps its expert");
  Layer& layer = layer_of(slot.key);
  layer.views[static_cast<size_t>(slot.key.expert)] = layer.mapped[static_cast<size_t>(slot.key.expert)];
  slot_of(slot.key) = kNone;
  policy_->on_remove(slot.key);
  if (slot.unused) {
    for (const ReadLayout::Extent& extent : slot.layout.extents) stats_.bytes_unused += extent.num_bytes;
  }
  slot.pinned = slot.predicted = slot.unused = false;
  slot.state = slot.lost ? SlotState::kLost : SlotState::kFree;
  slot.lost ? static_cast<void>(++lost_) : free_.push_back(index);
}

int64_t ExpertStore::num_slots() const {
  return memory_.num_slots() - static_cast<int64_t>(given_back_.size()) - lost_;
}

int64_t ExpertStore::num_untouched_slots() const {
  // Free slots are used again last in, first out: the untouched ones lie together at the front.
  return std::count_if(free_.begin(), free_.end(),
                       [this](int32_t slot) { return !slots_[static_cast<size_t>(slot)].touched; });
}

int64_t ExpertStore::resize(int64_t wanted) {
  wanted = std::max(wanted, least_slots_);
  while (num_slots() < wanted && !given_back_.empty()) {
    free_.insert(free_.begin(), given_back_.back());
    slots_[static_cast<size_t>(given_back_.back())].state = SlotState::kFree;
    given_back_.pop_back();
  }
  while (num_slots() > wanted) {
    int32_t slot = 0;
    if (!free_.empty()) {  // untouched ones first: they only promise memory
      slot = free_.front();
      free_.erase(free_.begin());
    } else {
      const std::optional<ExpertKey> victim = policy_->victim({}, false, [this](ExpertKey key) {
        return slots_[static_cast<size_t>(slot_of(key))].state != SlotState::kReady;
      });
      if (!victim) break;
      slot = slot_of(*victim);
      evict(slot);
      free_.pop_back();
    }
    memory_.release(slot);
    slots_[static_cast<size_t>(slot)].touched = false;
    slots_[static_cast<size_t>(slot)].state = SlotState::kGivenBack;
    given_back_.push_back(slot);
  }
  return num_slots();
}

void ExpertStore::poll() {
  done_.clear();
  reader_->poll(done_);
  handle_completions();
}

void ExpertStore::wait_for_reads() {
  done_.clear();
  reader_->wait(done_);
  handle_completions();
}

void ExpertStore::handle_completions() {
  for (ReadCompletion& completion : done_) {
    const auto index = static_cast<int32_t>(completion.tag / kMaxExtents);
    Slot& slot = slots_[static_cast<size_t>(index)];
    slot.lost = slot.lost || completion.memory_lost;
    if (!completion.status.is_ok() && slot.status.is_ok()) slot.status = refusal(slot, completion.status.message());
    if (--slot.reads_left == 0) finish_reads(index);
  }
}

void ExpertStore::finish_reads(int32_t index) {
  Slot& slot = slots_[static_cast<size_t>(index)];
  if (slot.cancelled != 0) return evict(index);
  if (slot.status.is_ok()) {
    settle(slot.layout, memory_.slot(index).data());
    slot.status = check_content(slot, memory_.slot(index).data());
  }
  if (!slot.status.is_ok()) {
    // A guess that fails is nobody's trouble: when the expert is needed, it is read again.
    if (!slot.pinned) return evict(index);
    slot.state = SlotState::kFailed;
    return;
  }
  Layer& layer = layer_of(slot.key);
  const auto expert = static_cast<size_t>(slot.key.expert);
  ExpertWeights& views = layer.views[expert];
  point_into(slot.layout, memory_.slot(index).data(), std::array{&views.w1, &views.w3, &views.w2});
  slot.state = SlotState::kReady;
}

// No NaN among the scales when the expert is read first, and the same bytes whenever it is read again.
Status ExpertStore::check_content(const Slot& slot, const std::byte* memory) {
  uint64_t& known = layer_of(slot.key).hash[static_cast<size_t>(slot.key.expert)];
  const uint64_t hash = content_hash(slot.layout, memory);
  if (known != 0 && known != hash) return refusal(slot, "its bytes differ from those that were read before");
  for (const ReadLayout::Tensor& tensor : slot.layout.tensors) {
    if (known == 0 && tensor.is_scale &&
        std::memchr(memory + tensor.slot_offset, kE8M0Nan, tensor.num_bytes) != nullptr) {
      return refusal(slot, "a scale of 255, a NaN");
    }
  }
  known = hash;
  return Status::ok();
}

Status ExpertStore::refusal(const Slot& slot, std::string_view why) const {
  const std::string path = checkpoint_.shard_path(slot.layout.extents[0].shard);
  const bool named = why.find(path) != std::string_view::npos;
  return Status::io(
      cat("layer ", slot.key.layer, ", expert ", slot.key.expert, named ? "" : cat(" (", path, ")"), ": ", why));
}

}  // namespace tandem

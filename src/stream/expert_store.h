// stream/expert_store.h: routed experts of a model in a fixed number of slots, the others on disk.
//
//   An expert that a step needs and that has no slot is read into one, the policy naming whose. Reads go in ascending
//   order of ids; a part is handed out as soon as its first expert is there, with as many behind it as have arrived, so
//   that reading and computing overlap, also when a layer needs more experts than there are slots. Predicted experts
//   are read when the drive has nothing else to do, and never at the cost of one that is needed.
//   A read that fails, an MXFP4 scale that is a NaN, and an expert whose bytes differ from those of its first read are
//   refused by layer, expert and file; no number of a step ever comes from such bytes. A drive that never answered
//   costs its slot.
//   Memory: slots · slot_bytes, address space until they are filled.
//   Threading: engine thread only. The checkpoint and the mapped experts outlive the store.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "model/expert_source.h"
#include "stream/direct_reader.h"
#include "stream/expert_policy.h"
#include "stream/read_layout.h"
#include "stream/slot_memory.h"
#include "weights/model_weights.h"

namespace tandem {

struct ExpertStoreStats {
  uint64_t steps = 0;   // of one layer each
  uint64_t needed = 0;  // experts, over the steps
  uint64_t hits = 0;    // of them, in memory when they were asked for
  uint64_t ahead = 0;   // of them, being read already because they were predicted
  uint64_t misses = 0;  // the others
  uint64_t bytes_read = 0;
  uint64_t bytes_unused = 0;   // of them, predictions that left memory without being needed
  double stall_seconds = 0.0;  // spent waiting for reads
  double busy_seconds = 0.0;   // with reads under way
  uint64_t predicted = 0;      // experts, over the steps that had a prediction
  uint64_t predicted_right = 0;
  uint64_t predicted_needed = 0;  // needed in those steps

  ExpertStoreStats& operator+=(const ExpertStoreStats& more);
  ExpertStoreStats operator-(const ExpertStoreStats& before) const;
};

class ExpertStore final : public ExpertSource {
 public:
  struct Options {
    int64_t num_slots = 0;
    std::unique_ptr<ExpertPolicy> policy;  // null: least recently used
    DirectReaderOptions reader;
  };
  // Bytes of a slot: the largest expert, in whole blocks. 0 without experts.
  static Result<uint64_t> slot_bytes_of(const Checkpoint& checkpoint, const ModelWeights& weights);
  // kInvalidArgument for fewer slots than one token chooses experts in a layer.
  static Result<std::unique_ptr<ExpertStore>> create(const Checkpoint& checkpoint, const ModelConfig& config,
                                                     const ModelWeights& weights, Options options);

  // Called when a step begins, with nothing pinned: the place to resize(). May refuse the step.
  void set_step_hook(std::function<Status()> hook) { step_hook_ = std::move(hook); }

  Status begin_step() override;
  void advance() override { poll(); }
  Status begin(int64_t layer, std::span<const int32_t> needed) override;
  Result<std::optional<ExpertPart>> next() override;
  void predict(int64_t layer, std::span<const int32_t> likely) override;

  // Between steps: gives memory of slots back to the system, or takes it again, up to the number the store was made
  // with. At least one token's experts stay, and what is being read; the number of slots in use afterwards.
  int64_t resize(int64_t num_slots);
  int64_t num_slots() const;            // in use: not given back, not lost to a drive without an answer
  int64_t num_untouched_slots() const;  // of them, without memory so far
  uint64_t slot_bytes() const { return memory_.slot_bytes(); }
  int64_t num_experts() const { return total_experts_; }  // of all layers
  const DirectReader& reader() const { return *reader_; }
  ExpertStoreStats stats() const;  // since it was made

 private:
  enum class SlotState : uint8_t { kFree, kReading, kReady, kFailed, kLost, kGivenBack };
  struct Slot {
    ExpertKey key;
    SlotState state = SlotState::kFree;
    bool pinned = false;     // needed by the layer in work
    bool predicted = false;  // by the last prediction; leaves only for what is needed
    bool unused = false;     // read for a prediction, not needed so far
    bool touched = false;    // has memory of the system
    bool lost = false;       // a read of it was never answered
    uint8_t cancelled = 0;   // extents whose reads were taken back, a bit each
    size_t reads_left = 0;
    Status status;  // the first failure
    ReadLayout layout;
  };
  struct Layer {
    std::span<const ExpertWeights> mapped;
    std::vector<ExpertWeights> views;  // in slots; of experts without one: where they lie on disk
    std::vector<int32_t> slot;         // of each expert; kNone
    std::vector<uint64_t> hash;        // of its bytes; 0: not read yet
  };
  static constexpr int32_t kNone = -1;

  ExpertStore(const Checkpoint& checkpoint, const ModelWeights& weights, SlotMemory memory,
              std::unique_ptr<DirectReader> reader, std::unique_ptr<ExpertPolicy> policy, int64_t least_slots);
  Layer& layer_of(ExpertKey key) { return layers_[static_cast<size_t>(key.layer)]; }
  int32_t& slot_of(ExpertKey key) { return layer_of(key).slot[static_cast<size_t>(key.expert)]; }
  ExpertKey key_of(size_t position) const { return {static_cast<int32_t>(layer_), needed_[position]}; }

  void count_step();
  void pin_resident();
  void drop_wrong_guesses();
  void issue_reads();
  bool make_room();
  std::optional<int32_t> take_slot(ExpertKey incoming, bool speculative);
  void start_reads(int32_t slot, ExpertKey key, bool speculative);
  void submit(int32_t slot, size_t extent, bool urgent);
  void make_urgent(int32_t slot);
  bool cancel_reads(int32_t slot);
  void evict(int32_t slot);
  void poll();
  void wait_for_reads();
  void handle_completions();
  void finish_reads(int32_t slot);
  Status check_content(const Slot& slot, const std::byte* memory);
  Status refusal(const Slot& slot, std::string_view why) const;
  Status prepare_next();
  void unpin(size_t begin, size_t end);

  const Checkpoint& checkpoint_;
  SlotMemory memory_;
  std::unique_ptr<ExpertPolicy> policy_;
  std::vector<Layer> layers_;
  std::vector<Slot> slots_;
  std::vector<int32_t> free_;
  std::vector<int32_t> given_back_;
  int64_t lost_ = 0;
  int64_t least_slots_ = 0;
  std::function<Status()> step_hook_;
  int64_t total_experts_ = 0;
  std::unique_ptr<DirectReader> reader_;  // its destructor waits for reads into memory_, so it goes first

  // The layer in work.
  int64_t layer_ = 0;
  std::vector<int32_t> needed_;
  size_t issued_ = 0;      // of needed_: they have a slot
  size_t part_begin_ = 0;  // of needed_: the part that was handed out last
  size_t part_end_ = 0;
  // The last prediction.
  std::optional<int64_t> predicted_layer_;
  std::vector<int32_t> likely_;

  std::vector<ReadCompletion> done_;  // scratch
  ExpertStoreStats stats_;
};

}  // namespace tandem

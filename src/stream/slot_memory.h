// stream/slot_memory.h: equal pieces of one region of memory, in huge pages where the system has them.
//
//   The region is address space: a slot takes memory when it is first written.
//   Threading: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace tandem {

class SlotMemory {
 public:
  // slot_bytes is a multiple of kDirectAlignment. kResourceExhausted when there is no such room.
  static Result<SlotMemory> create(int64_t num_slots, uint64_t slot_bytes);
  SlotMemory() = default;
  SlotMemory(SlotMemory&& other) noexcept;
  SlotMemory& operator=(SlotMemory&& other) noexcept;
  ~SlotMemory();

  void release(int64_t i) const;  // what it holds is lost, and its memory goes back to the system
  int64_t num_slots() const { return num_slots_; }
  uint64_t slot_bytes() const { return slot_bytes_; }
  std::span<std::byte> slot(int64_t i) const {
    return {base_ + static_cast<uint64_t>(i) * slot_bytes_, static_cast<size_t>(slot_bytes_)};
  }

 private:
  std::byte* base_ = nullptr;
  uint64_t region_bytes_ = 0;
  int64_t num_slots_ = 0;
  uint64_t slot_bytes_ = 0;
};

}  // namespace tandem

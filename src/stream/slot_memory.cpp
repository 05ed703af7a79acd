#include "stream/slot_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/cat.h"
#include "base/check.h"
#include "stream/direct_file.h"

namespace tandem {

Result<SlotMemory> SlotMemory::create(int64_t num_slots, uint64_t slot_bytes) {
  TANDEM_CHECK(num_slots > 0 && slot_bytes > 0 && slot_bytes % kDirectAlignment == 0, "slots are whole blocks");
  SlotMemory memory;
  memory.num_slots_ = num_slots;
  memory.slot_bytes_ = slot_bytes;
  if (__builtin_mul_overflow(static_cast<uint64_t>(num_slots), slot_bytes, &memory.region_bytes_)) {
    return Status::exhausted(cat(num_slots, " slots of ", slot_bytes, " bytes exceed the address space"));
  }
  // MAP_NORESERVE: the budget was checked by whoever counts it, and memory is taken as slots are filled.
  void* base =
      ::mmap(nullptr, memory.region_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return Status::exhausted(
        cat("cannot reserve ", memory.region_bytes_, " bytes for experts: ", std::strerror(errno)));
  }
  memory.base_ = static_cast<std::byte*>(base);
  // Advice: pinning a read's pages and walking a matrix cost less in large ones.
  (void)::madvise(base, memory.region_bytes_, MADV_HUGEPAGE);
  return memory;
}

void SlotMemory::release(int64_t i) const {
  // Advice: a refusal costs memory, not correctness.
  (void)::madvise(slot(i).data(), slot_bytes_, MADV_DONTNEED);
}

SlotMemory::SlotMemory(SlotMemory&& other) noexcept { *this = std::move(other); }

SlotMemory& SlotMemory::operator=(SlotMemory&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(region_bytes_, other.region_bytes_);
  std::swap(num_slots_, other.num_slots_);
  std::swap(slot_bytes_, other.slot_bytes_);
  return *this;
}

SlotMemory::~SlotMemory() {
  if (base_ != nullptr) ::munmap(base_, region_bytes_);
}

}  // namespace tandem

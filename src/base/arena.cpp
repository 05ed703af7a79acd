#include "base/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "base/check.h"

namespace tandem {
namespace {
constexpr size_t kMinBlockBytes = size_t{1} << 20;
constexpr size_t kHugePageBytes = size_t{2} << 20;
}  // namespace

void Arena::AlignedDelete::operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{alignment}); }

void* Arena::alloc_bytes(size_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  while (current_ < blocks_.size() && blocks_[current_].size - blocks_[current_].used < bytes) {
    if (current_ + 1 == blocks_.size()) break;
    enter_next_block();
  }
  if (blocks_.empty() || blocks_[current_].size - blocks_[current_].used < bytes) {
    const size_t previous = blocks_.empty() ? 0 : blocks_.back().size;
    const size_t size = std::max({bytes, kMinBlockBytes, previous * 2});
    Block block{};
    const size_t alignment = size < kHugePageBytes ? kAlignment : kHugePageBytes;
    block.memory = {static_cast<std::byte*>(::operator new[](size, std::align_val_t{alignment})),
                    AlignedDelete{alignment}};
    if (alignment == kHugePageBytes) madvise(block.memory.get(), size, MADV_HUGEPAGE);  // a wish: refusal costs nothing
    block.size = size;
    blocks_.push_back(std::move(block));
    if (blocks_.size() > 1) enter_next_block();
  }
  Block& block = blocks_[current_];
  void* p = block.memory.get() + block.used;
  block.used += bytes;
  peak_ = std::max(peak_, block.before + block.used);
  return p;
}

void Arena::enter_next_block() {
  const Block& full = blocks_[current_++];
  blocks_[current_].used = 0;
  blocks_[current_].before = full.before + full.used;
}

void Arena::release(Mark mark) {
  if (blocks_.empty()) return;
  TANDEM_CHECK(mark.block < blocks_.size(), "an arena mark from another arena");
  current_ = mark.block;
  blocks_[current_].used = mark.used;
}

size_t Arena::capacity_bytes() const {
  size_t total = 0;
  for (const Block& block : blocks_) total += block.size;
  return total;
}

}  // namespace tandem

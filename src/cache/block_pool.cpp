#include "cache/block_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/cat.h"
#include "base/check.h"

namespace tandem {
namespace {

constexpr BlockId kNullBlock{};

size_t mapping_bytes(const PoolLayout& layout, int64_t num_blocks) {
  return static_cast<size_t>(num_blocks + 1) * static_cast<size_t>(layout.block_bytes());
}

}  // namespace

Result<std::unique_ptr<BlockPool>> BlockPool::create(const PoolLayout& layout, int64_t num_blocks, bool poison) {
  if (num_blocks < 1 || num_blocks >= INT32_MAX) {
    return Status::exhausted(cat("block pool: expected 1 to ", INT32_MAX - 1, " blocks, found ", num_blocks));
  }
  const size_t bytes = mapping_bytes(layout, num_blocks);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return Status::exhausted(cat("block pool: no address space for ", num_blocks, " blocks of ", layout.block_bytes(),
                                 " bytes: ", std::strerror(errno)));
  }
  mprotect(memory, static_cast<size_t>(layout.block_bytes()), PROT_NONE);
  return std::unique_ptr<BlockPool>(new BlockPool(layout, num_blocks, poison, static_cast<std::byte*>(memory)));
}

BlockPool::BlockPool(const PoolLayout& layout, int64_t num_blocks, bool poison, std::byte* memory)
    : layout_(layout),
      num_blocks_(num_blocks),
      poison_(poison),
      memory_(memory),
      metas_(static_cast<size_t>(num_blocks) + 1) {
  for (int32_t id = 1; id <= num_blocks; ++id) push_back(free_, BlockId(id));
}

BlockPool::~BlockPool() { munmap(memory_, mapping_bytes(layout_, num_blocks_)); }

size_t BlockPool::index(BlockId block) const {
  TANDEM_CHECK(block.value > 0 && block.value <= num_blocks_, "a block of the pool, not the null block");
  return static_cast<size_t>(block.value);
}

std::byte* BlockPool::slot(BlockId block, int64_t slot) const {
  TANDEM_DCHECK(slot >= 0 && slot < layout_.slots_per_block, "a slot of the block");
  return memory_ + static_cast<size_t>(layout_.block_bytes()) * index(block) +
         static_cast<size_t>(slot * layout_.slot_stride);
}

void BlockPool::push_back(List& list, BlockId block) {
  BlockMeta& m = entry(block);
  m.previous = list.tail;
  m.next = kNullBlock;
  (list.tail == kNullBlock ? list.head : entry(list.tail).next) = block;
  list.tail = block;
  ++list.size;
}

void BlockPool::push_front(List& list, BlockId block) {
  BlockMeta& m = entry(block);
  m.previous = kNullBlock;
  m.next = list.head;
  (list.head == kNullBlock ? list.tail : entry(list.head).previous) = block;
  list.head = block;
  ++list.size;
}

void BlockPool::unlink(List& list, BlockId block) {
  BlockMeta& m = entry(block);
  (m.previous == kNullBlock ? list.head : entry(m.previous).next) = m.next;
  (m.next == kNullBlock ? list.tail : entry(m.next).previous) = m.previous;
  m.previous = m.next = kNullBlock;
  --list.size;
}

std::optional<BlockId> BlockPool::allocate(BlockKind kind, int32_t group) {
  TANDEM_CHECK(kind != BlockKind::kNone, "a block is allocated for something");
  if (free_.size == 0) return std::nullopt;
  const BlockId block = free_.head;
  unlink(free_, block);
  BlockMeta& m = entry(block);
  if (poison_ && !m.is_poisoned) {
    fill(block, layout_.slots_per_block, 0, layout_.slot_bytes);
    m.is_poisoned = true;
  } else {
    fill(block, m.dirty_slots, 0, m.dirty_bytes);
  }
  m.dirty_bytes = m.dirty_slots = 0;
  m.ref = 1;
  m.kind = kind;
  ++in_use_[static_cast<size_t>(kind)];
  m.phase = BlockPhase::kFilling;
  m.group = group;
  m.serial = next_serial_++;
  m.valid_tokens = 0;
  return block;
}

void BlockPool::add_use(BlockId block) {
  BlockMeta& m = entry(block);
  TANDEM_CHECK(m.phase != BlockPhase::kFree, "a free block has no users");
  if (m.ref == 0) {
    unlink(cached_, block);
    ++in_use_[static_cast<size_t>(m.kind)];
  }
  ++m.ref;
}

void BlockPool::drop_use(BlockId block) {
  BlockMeta& m = entry(block);
  TANDEM_CHECK(m.ref > 0, "a use is given back once");
  if (--m.ref > 0) return;
  --in_use_[static_cast<size_t>(m.kind)];
  m.recency = clock_;
  if (m.is_named) {
    m.phase = BlockPhase::kReady;
    push_back(cached_, block);
  } else {
    m.phase = BlockPhase::kFree;
    m.kind = BlockKind::kNone;
    push_front(free_, block);
  }
}

void BlockPool::set_named(BlockId block, bool is_named) {
  BlockMeta& m = entry(block);
  TANDEM_CHECK(m.phase != BlockPhase::kFree || !is_named, "a free block has no name");
  if (m.is_named == is_named) return;
  m.is_named = is_named;
  if (is_named) {
    m.phase = BlockPhase::kReady;
    return;
  }
  m.checkpoint = CheckpointId();
  m.phase = BlockPhase::kUnnamed;
  if (m.ref > 0) return;
  unlink(cached_, block);
  m.phase = BlockPhase::kFree;
  m.kind = BlockKind::kNone;
  push_front(free_, block);
}

std::optional<BlockId> BlockPool::oldest_cached() const {
  if (cached_.size == 0) return std::nullopt;
  return cached_.head;
}

void BlockPool::touch(BlockId block) {
  BlockMeta& m = entry(block);
  if (m.ref > 0 || !m.is_named) return;
  unlink(cached_, block);
  m.recency = clock_;
  push_back(cached_, block);
}

void BlockPool::mark_dirty(BlockId block, int64_t bytes) {
  TANDEM_DCHECK(bytes <= layout_.slot_bytes, "a slot's payload");
  BlockMeta& m = entry(block);
  m.dirty_bytes = std::max(m.dirty_bytes, bytes);
  m.dirty_slots = slots_in_use(m);
}

int64_t BlockPool::slots_in_use(const BlockMeta& m) const {
  return m.kind == BlockKind::kKda ? layout_.kda_layers_in_group(m.group) : layout_.num_mla_layers;
}

void BlockPool::fill(BlockId block, int64_t num_slots, int64_t begin, int64_t end) {
  if (end <= begin) return;
  for (int64_t s = 0; s < num_slots; ++s) {
    std::byte* bytes = slot(block, s);
    if (poison_) {
      // Row and state sizes are even, so the pattern's phase is the slot's.
      for (int64_t at = begin; at + 1 < end; at += 2) std::memcpy(bytes + at, &kPoison, sizeof(kPoison));
    } else {
      std::memset(bytes + begin, 0, static_cast<size_t>(end - begin));
    }
  }
  scrubbed_bytes_ += (end - begin) * num_slots;
}

void BlockPool::zero(BlockId block, int64_t bytes) {
  for (int64_t s = 0; s < slots_in_use(meta(block)); ++s) std::memset(slot(block, s), 0, static_cast<size_t>(bytes));
}

Status BlockPool::audit_list(const List& list, bool is_named, std::vector<bool>& seen) const {
  int64_t size = 0;
  uint64_t recency = 0;
  BlockId previous = kNullBlock;
  for (BlockId block = list.head; block != kNullBlock; block = meta(block).next) {
    const BlockMeta& m = meta(block);
    if (m.previous != previous || seen[index(block)]) {
      return Status::failed_precondition(cat("block ", block.value, ": its list is not one chain"));
    }
    if (m.ref != 0 || m.is_named != is_named || (m.phase == BlockPhase::kFree) == is_named) {
      return Status::failed_precondition(cat("block ", block.value, ": in the list of ", is_named ? "cached" : "free",
                                             " blocks with ", m.ref, " uses, named ", m.is_named));
    }
    if (is_named && m.recency < recency) {
      return Status::failed_precondition(cat("block ", block.value, ": cached blocks are out of order of use"));
    }
    recency = m.recency;
    seen[index(block)] = true;
    previous = block;
    ++size;
  }
  if (size != list.size || list.tail != previous) {
    return Status::failed_precondition(cat("block pool: a list of ", list.size, " blocks has ", size));
  }
  return Status::ok();
}

Status BlockPool::audit(std::span<const int32_t> uses) const {
  TANDEM_CHECK(uses.size() == metas_.size(), "a count for every block and the null block");
  std::vector<bool> seen(metas_.size(), false);
  TANDEM_RETURN_IF_ERROR(audit_list(free_, false, seen));
  TANDEM_RETURN_IF_ERROR(audit_list(cached_, true, seen));
  if (uses[0] != 0 || metas_[0].ref != 0) return Status::failed_precondition("I6: the null block is in use");
  std::array<int64_t, 3> in_use = {};
  for (const BlockMeta& m : metas_) in_use[static_cast<size_t>(m.kind)] += m.ref > 0 ? 1 : 0;
  if (in_use != in_use_) return Status::failed_precondition("I6: the counts of blocks in use are wrong");
  for (size_t i = 1; i < metas_.size(); ++i) {
    const BlockMeta& m = metas_[i];
    if (m.ref != uses[i]) {
      return Status::failed_precondition(cat("I6: block ", i, " counts ", m.ref, " uses, ", uses[i], " are known"));
    }
    if ((m.ref > 0) == seen[i]) {
      return Status::failed_precondition(
          cat("I6: block ", i, " with ", m.ref, " uses is ", seen[i] ? "" : "not ", "in a list"));
    }
    if (m.ref > 0 && (m.kind == BlockKind::kNone || m.is_named != (m.phase == BlockPhase::kReady))) {
      return Status::failed_precondition(cat("block ", i, ": its phase does not fit its name"));
    }
  }
  return Status::ok();
}

}  // namespace tandem

// The block pool against a model of itself, and what its memory holds.
#include "cache/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <list>
#include <map>
#include <random>

#include "cache/fake_model.h"
#include "support/effort.h"

namespace tandem {
namespace {

PoolLayout small_layout(std::string_view kinds = "kkm") {
  return make_pool_layout(test::fake_layout(kinds), 16, std::nullopt).value();
}

// What a pool is, in the plainest words.
struct Reference {
  std::vector<int32_t> uses;
  std::vector<bool> is_named;
  std::list<int32_t> cached;  // oldest first
  int64_t free = 0;
};

TEST(BlockPool, FuzzAgainstAReferenceUnderAudit) {
  const PoolLayout layout = small_layout();
  constexpr int32_t kBlocks = 24;
  auto pool = BlockPool::create(layout, kBlocks, false).value();
  Reference ref{.uses = std::vector<int32_t>(kBlocks + 1, 0),
                .is_named = std::vector<bool>(kBlocks + 1, false),
                .cached = {},
                .free = kBlocks};
  std::mt19937_64 random(7);
  const int64_t operations = test::effort(1000000);
  for (int64_t i = 0; i < operations; ++i) {
    const BlockId block(static_cast<int32_t>(1 + random() % kBlocks));
    const auto b = static_cast<size_t>(block.value);
    const bool is_free = ref.uses[b] == 0 && !ref.is_named[b];
    switch (random() % 6) {
      case 0: {
        const auto made = pool->allocate(random() % 2 == 0 ? BlockKind::kMla : BlockKind::kKda, 0);
        ASSERT_EQ(made.has_value(), ref.free > 0);
        if (!made) break;
        const auto m = static_cast<size_t>(made->value);
        ASSERT_GT(made->value, 0);
        ASSERT_TRUE(ref.uses[m] == 0 && !ref.is_named[m]) << "block " << m << " was not free";
        ref.uses[m] = 1;
        --ref.free;
        break;
      }
      case 1:
        if (is_free) break;
        if (ref.uses[b] == 0) ref.cached.remove(block.value);
        ++ref.uses[b];
        pool->add_use(block);
        break;
      case 2:
      case 3:
        if (ref.uses[b] == 0) break;
        pool->drop_use(block);
        if (--ref.uses[b] == 0) {
          if (ref.is_named[b]) {
            ref.cached.push_back(block.value);
          } else {
            ++ref.free;
          }
        }
        break;
      case 4: {
        const bool is_named = random() % 2 == 0;
        if (is_free) break;
        if (!is_named && ref.is_named[b] && ref.uses[b] == 0) {
          ref.cached.remove(block.value);
          ++ref.free;
        }
        ref.is_named[b] = is_named;
        pool->set_named(block, is_named);
        break;
      }
      default:
        pool->advance_clock();
        pool->touch(block);
        if (ref.uses[b] == 0 && ref.is_named[b]) {
          ref.cached.remove(block.value);
          ref.cached.push_back(block.value);
        }
    }
    ASSERT_EQ(pool->num_free(), ref.free);
    ASSERT_EQ(pool->num_cached(), static_cast<int64_t>(ref.cached.size()));
    ASSERT_EQ(pool->oldest_cached(), ref.cached.empty() ? std::nullopt : std::optional(BlockId(ref.cached.front())));
    if (i % 16 == 0) {
      const Status status = pool->audit(ref.uses);
      ASSERT_TRUE(status.is_ok()) << status.message();
    }
  }
}

TEST(BlockPool, AuditFindsAUseThatNobodyKnowsOf) {
  auto pool = BlockPool::create(small_layout(), 3, false).value();
  const BlockId block = *pool->allocate(BlockKind::kMla, 0);
  std::vector<int32_t> uses(4, 0);
  EXPECT_EQ(pool->audit(uses).code(), StatusCode::kFailedPrecondition);
  uses[static_cast<size_t>(block.value)] = 1;
  EXPECT_TRUE(pool->audit(uses).is_ok());
  pool->add_use(block);
  EXPECT_EQ(pool->audit(uses).code(), StatusCode::kFailedPrecondition);
}

TEST(BlockPool, NullBlockIsNeverHandedOut) {
  auto pool = BlockPool::create(small_layout(), 5, false).value();
  std::vector<int32_t> ids;
  while (const auto block = pool->allocate(BlockKind::kKda, 0)) ids.push_back(block->value);
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 2, 3, 4, 5}));
  EXPECT_DEATH(pool->slot(BlockId(0), 0), "null block");
  EXPECT_DEATH(pool->drop_use(BlockId(0)), "null block");
  EXPECT_DEATH(pool->slot(BlockId(6), 0), "a block of the pool");
}

#ifndef TANDEM_SANITIZED
TEST(BlockPool, NullBlockHasNoMemory) {
  const PoolLayout layout = small_layout();
  auto pool = BlockPool::create(layout, 1, false).value();
  std::byte* null_block = pool->slot(BlockId(1), 0) - layout.block_bytes();
  EXPECT_DEATH(*const_cast<volatile std::byte*>(null_block) = std::byte{1}, "");
}
#endif

TEST(BlockPool, SlotsArePageAlignedAndDisjoint) {
  const PoolLayout layout = small_layout("kkkkmm");
  auto pool = BlockPool::create(layout, 4, false).value();
  std::vector<std::byte*> begins;
  for (int32_t b = 1; b <= 4; ++b) {
    for (int64_t s = 0; s < layout.slots_per_block; ++s) begins.push_back(pool->slot(BlockId(b), s));
  }
  std::sort(begins.begin(), begins.end());
  for (size_t i = 0; i < begins.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(begins[i]) % 4096, 0u);
    if (i > 0) {
      EXPECT_GE(begins[i] - begins[i - 1], layout.slot_bytes);
    }
  }
}

TEST(BlockPool, ReuseFindsZerosAndOnlyWhatWasDirtiedIsScrubbed) {
  const PoolLayout layout = small_layout();
  auto pool = BlockPool::create(layout, 1, false).value();
  for (int64_t dirty = 0; dirty <= layout.slot_bytes; dirty += 16) {
    const BlockId block = *pool->allocate(BlockKind::kMla, 0);
    const int64_t scrubbed = pool->scrubbed_bytes();
    std::byte* bytes = pool->slot(block, 0);
    ASSERT_EQ(std::count(bytes, bytes + layout.slot_bytes, std::byte{0}), layout.slot_bytes) << dirty;
    pool->mark_dirty(block, dirty);
    std::fill(bytes, bytes + dirty, std::byte{0x5a});
    pool->drop_use(block);
    const BlockId again = *pool->allocate(BlockKind::kMla, 0);
    EXPECT_EQ(pool->scrubbed_bytes() - scrubbed, dirty);  // one MLA layer
    pool->drop_use(again);
  }
}

TEST(BlockPool, PoisonCoversWhatIsNotWritten) {
  const PoolLayout layout = small_layout();
  auto pool = BlockPool::create(layout, 1, true).value();
  const auto count_poison = [&](BlockId block) {
    const auto* words = reinterpret_cast<const uint16_t*>(pool->slot(block, 0));
    return 2 * std::count(words, words + layout.slot_bytes / 2, kPoison);
  };
  const BlockId block = *pool->allocate(BlockKind::kMla, 0);
  EXPECT_EQ(count_poison(block), layout.slot_bytes);
  pool->mark_dirty(block, 64);
  std::fill_n(pool->slot(block, 0), 64, std::byte{1});
  EXPECT_EQ(count_poison(block), layout.slot_bytes - 64);
  pool->drop_use(block);
  EXPECT_EQ(count_poison(*pool->allocate(BlockKind::kMla, 0)), layout.slot_bytes);
  // A NaN as either type.
  std::vector<float> values(2);
  const uint16_t pair[2] = {kPoison, kPoison};
  load_floats(pair, DType::kBF16, values);
  EXPECT_TRUE(std::isnan(values[0]));
  load_floats(pair, DType::kF32, std::span(values).first(1));
  EXPECT_TRUE(std::isnan(values[0]));
}

TEST(BlockPool, MemoryIsCommittedAtFirstTouch) {
  // Sixteen gigabytes of blocks: only their bookkeeping is real.
  const PoolLayout layout = make_pool_layout(test::fake_layout("km", DType::kF32, 128), 16, std::nullopt).value();
  auto pool = BlockPool::create(layout, (int64_t{1} << 34) / layout.block_bytes(), false);
  ASSERT_TRUE(pool.is_ok());
  const auto block = pool.value()->allocate(BlockKind::kMla, 0);
  EXPECT_EQ(pool.value()->slot(*block, 0)[layout.slot_bytes - 1], std::byte{0});
}

}  // namespace
}  // namespace tandem

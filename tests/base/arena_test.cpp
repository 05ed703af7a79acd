#include "base/arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace tandem {
namespace {

TEST(Arena, MemoryIsAlignedAndDistinct) {
  Arena arena;
  std::vector<std::span<uint8_t>> pieces;
  for (int64_t bytes = 1; bytes < 300; bytes += 7) {
    const auto piece = arena.alloc<uint8_t>(bytes);
    ASSERT_EQ(piece.size(), static_cast<size_t>(bytes));
    ASSERT_EQ(reinterpret_cast<uintptr_t>(piece.data()) % Arena::kAlignment, 0u);
    std::memset(piece.data(), static_cast<int>(pieces.size()), piece.size());
    pieces.push_back(piece);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (const uint8_t byte : pieces[i]) ASSERT_EQ(byte, i) << "another piece wrote here";
  }
}

TEST(Arena, NothingIsAnEmptySpan) {
  Arena arena;
  EXPECT_TRUE(arena.alloc<double>(0).empty());
  arena.reset();
  EXPECT_TRUE(arena.alloc<double>(0).empty());
}

TEST(Arena, GrowthKeepsWhatWasGiven) {
  Arena arena;
  std::vector<std::span<int64_t>> pieces;
  for (int64_t i = 0; i < 40; ++i) {
    const auto piece = arena.alloc<int64_t>(100000);  // 0.8 MB: several blocks
    for (int64_t& value : piece) value = i;
    pieces.push_back(piece);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (const int64_t value : pieces[i]) ASSERT_EQ(value, static_cast<int64_t>(i));
  }
}

TEST(Arena, OnePieceLargerThanAnyBlock) {
  Arena arena;
  (void)arena.alloc<char>(10);
  const auto large = arena.alloc<char>(64 << 20);
  std::memset(large.data(), 1, large.size());
  EXPECT_GE(arena.capacity_bytes(), large.size());
}

TEST(Arena, ReleaseGivesBackTheSameMemoryAndKeepsTheRest) {
  Arena arena;
  const auto kept = arena.alloc<int>(16);
  for (int& value : kept) value = 7;
  const Arena::Mark mark = arena.mark();
  const auto first = arena.alloc<int>(1000);
  arena.release(mark);
  const auto second = arena.alloc<int>(1000);
  EXPECT_EQ(first.data(), second.data());
  for (int& value : second) value = 9;
  for (const int value : kept) EXPECT_EQ(value, 7);
}

TEST(Arena, ReleaseReachesBackOverBlocks) {
  Arena arena;
  const auto before = arena.alloc<char>(1000);
  std::memset(before.data(), 3, before.size());
  const Arena::Mark mark = arena.mark();
  const char* first = arena.alloc<char>(1000).data();
  for (int i = 0; i < 5; ++i) std::memset(arena.alloc<char>(3 << 20).data(), 4, 3 << 20);
  arena.release(mark);
  EXPECT_EQ(arena.alloc<char>(1000).data(), first);
  for (const char value : before) ASSERT_EQ(value, 3);
}

TEST(Arena, ScopesNest) {
  Arena arena;
  const char* outer_next = nullptr;
  {
    const ArenaScope outer(arena);
    (void)arena.alloc<char>(500);
    {
      const ArenaScope inner(arena);
      outer_next = arena.alloc<char>(500).data();
    }
    EXPECT_EQ(arena.alloc<char>(500).data(), outer_next);
  }
}

TEST(Arena, AWarmStepAllocatesNothing) {
  Arena arena;
  const auto step = [&] {
    std::vector<const void*> pieces;
    for (const int64_t bytes : {100, 2 << 20, 5000, 900000, 3 << 20, 64}) {
      const ArenaScope scratch(arena);
      (void)arena.alloc<char>(bytes * 2);
      (void)arena.alloc<char>(bytes);
    }
    for (const int64_t bytes : {100, 2 << 20, 5000, 900000, 3 << 20, 64}) {
      pieces.push_back(arena.alloc<char>(bytes).data());
    }
    return pieces;
  };
  (void)step();
  arena.reset();
  const size_t warm_bytes = arena.capacity_bytes();
  const auto first = step();
  for (int i = 0; i < 20; ++i) {
    arena.reset();
    EXPECT_EQ(step(), first);
  }
  EXPECT_EQ(arena.capacity_bytes(), warm_bytes);
}

TEST(ArenaDeathTest, AMarkOfAnotherArenaAborts) {
  Arena arena;
  (void)arena.alloc<char>(1);
  EXPECT_DEATH(arena.release(Arena::Mark{9, 0}), "mark from another arena");
}

}  // namespace
}  // namespace tandem

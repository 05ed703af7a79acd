// A warm decode step inside a hash unit and a page allocates nothing in the cache.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>

#include "cache/fake_model.h"

// GCC cannot see that this file's operator new and delete are a pair.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
  return std::aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  if (void* p = allocate(bytes, alignment)) return p;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate_or_throw(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace tandem {
namespace {

TEST(HybridCacheAllocation, AWarmDecodeStepAllocatesNothing) {
  for (const char* kinds : {"kkkm", "kk", "mm"}) {
    const CacheLayout layout = test::fake_layout(kinds);
    const HybridCacheOptions options{
        .hash_unit = 64, .budget_bytes = int64_t{4} << 20, .checkpoint_interval = 0, .identity = "warm"};
    auto cache = HybridCache::create(layout, options).value();
    const test::FakeModel model(layout);
    std::vector<TokenId> tokens(300, TokenId(3));
    const std::vector<TokenId> prompt(tokens.begin(), tokens.begin() + 70);
    ASSERT_TRUE(cache->admit(SeqId(1), prompt, {}, 70));
    ASSERT_TRUE(model.run_to_end(*cache, SeqId(1), prompt));
    int64_t counted = 0;
    for (int64_t at = 70; at < 300; ++at) {
      const std::array<TokenId, 1> next = {tokens[static_cast<size_t>(at)]};
      const bool crosses = (at + 1) % 64 == 0 || at % 64 == 0 || at == 70;
      counting = !crosses;
      const bool has_room = cache->prepare_step(SeqId(1), 1);
      const SequenceCacheView view = cache->view(SeqId(1));
      const auto captures = cache->captures(SeqId(1));
      counting = false;
      ASSERT_TRUE(has_room);
      model.run(view, captures, tokens, at, 1);
      counting = !crosses;
      const Status status = cache->commit_step(SeqId(1), next);
      counting = false;
      ASSERT_TRUE(status.is_ok()) << status.message();
      counted += crosses ? 0 : 1;
    }
    EXPECT_GT(counted, 200);
    EXPECT_EQ(allocations.exchange(0), 0) << kinds;
  }
}

}  // namespace
}  // namespace tandem

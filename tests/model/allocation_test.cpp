// A warm decode step allocates nothing: every operator new of the process is counted while the model runs.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>

#include "model/random_model.h"

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

TEST(Allocation, AWarmDecodeStepAllocatesNothing) {
  test::for_each_backend([](test::BackendFixture& backend) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      const test::RandomModel model(test::random_shape(seed), seed);
      SequenceCache cache = model.new_cache();
      ASSERT_TRUE(cache.reserve(130).is_ok());
      StepPlan plan;
      plan.tokens.resize(1);
      plan.sequences.resize(1);
      for (int64_t position = 0; position < 130; ++position) {
        plan.tokens[0] = TokenId(static_cast<int32_t>(position % model.config().vocab_size));
        plan.sequences[0].cache = 0;
        plan.sequences[0].num_tokens = 1;
        plan.sequences[0].num_computed_tokens = position;
        plan.sequences[0].mode = StepMode::kDecode;
        const std::array<SequenceCacheView, 1> views = {cache.view()};
        counting = position >= 2;
        const auto logits = model.model().forward(backend.ctx(), plan, views);
        counting = false;
        ASSERT_TRUE(logits.is_ok()) << logits.status().message();
      }
      EXPECT_EQ(allocations.exchange(0), 0) << "seed " << seed;
    }
  });
}

}  // namespace
}  // namespace tandem

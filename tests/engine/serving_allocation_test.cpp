// A warm decode step of the serving engine allocates nothing: every operator new of the process is counted while the
// engine plans, runs, samples and commits. Delivery makes the outputs that the sinks own, and is not counted.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/serving_support.h"

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

TEST(ServingAllocation, AWarmDecodeStepAllocatesNothing) {
  const auto model = test::load_model(test::tiny_dir());
  ServingOptions options = test::small_options();
  options.verify_rate = 1;
  test::Engine engine(*model, options);
  // 16 sequences of every kind of sampling, 66 tokens long and so at the begin of a unit and of a page's half.
  for (int64_t i = 0; i < 16; ++i) {
    EngineRequest request = test::seeded_request(cat("r", i), test::random_prompt(66, i), 200, 9);
    request.sampling.top_k = i % 2 == 0 ? 20 : 0;
    request.sampling.top_p = i % 3 == 0 ? 0.9 : 1.0;
    request.sampling.frequency_penalty = i % 4 == 0 ? 0.5 : 0.0;
    request.min_tokens = 100;
    request.stop_tokens = {TokenId(371)};
    engine.submit(request);
  }
  while (engine.reply("r15").tokens.size() < 4) engine->step();
  const int64_t generated = engine->metrics().generated_tokens;
  for (int i = 0; i < 20; ++i) {
    counting = true;
    const bool has_computed = engine->compute_step();
    counting = false;
    ASSERT_TRUE(has_computed);
    engine->deliver();
  }
  EXPECT_EQ(engine->metrics().generated_tokens, generated + 20 * 16);
  EXPECT_EQ(allocations.exchange(0), 0);
}

}  // namespace
}  // namespace tandem

// tests/support/compare.h: compare against a golden with a computed tolerance and name the worst element; run one
// check for every backend this machine has.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "kernels/exec_context.h"
#include "kernels/kernel_table.h"

namespace tandem::test {

// Tolerance of an f32 sum of `reduced` products whose result is about `scale`: 8 · 2^-24 · sqrt(reduced) · scale, the
// random-walk growth of rounding with a safety factor for the transcendental functions on the way.
float tolerance_f32(int64_t reduced, float scale);

float max_abs(std::span<const float> values);

// |actual − expected| ≤ tolerance everywhere; on failure reports the worst element and its index. NaN never passes.
::testing::AssertionResult all_close(std::span<const float> actual, std::span<const float> expected, float tolerance);

// Bitwise equality, with the first difference reported.
::testing::AssertionResult all_equal_bits(std::span<const float> actual, std::span<const float> expected);

// One backend ready to run: a pool of `num_threads`, an arena and its kernel table.
class BackendFixture {
 public:
  explicit BackendFixture(KernelBackend backend, int num_threads = 2);
  const ExecContext& ctx() const { return ctx_; }
  KernelBackend backend() const { return table_.backend; }

 private:
  ThreadPool pool_;
  Arena arena_;
  KernelTable table_;
  ExecContext ctx_;
};

// Calls body once for each backend of this machine, with a SCOPED_TRACE naming it.
void for_each_backend(const std::function<void(BackendFixture&)>& body);

}  // namespace tandem::test

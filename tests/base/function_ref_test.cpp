#include "base/function_ref.h"

#include <gtest/gtest.h>

#include <memory>

namespace tandem {
namespace {

int doubled(int x) { return 2 * x; }

int call(FunctionRef<int(int)> f, int x) { return f(x); }

TEST(FunctionRef, CallsLambdasFunctorsAndTemporaries) {
  int offset = 10;
  EXPECT_EQ(call([&](int x) { return x + offset; }, 5), 15);
  const auto twice = [](int x) { return doubled(x); };
  EXPECT_EQ(call(twice, 21), 42);
  struct Counter {
    int calls = 0;
    int operator()(int x) { return x + ++calls; }
  } counter;
  EXPECT_EQ(call(counter, 1), 2);
  EXPECT_EQ(call(counter, 1), 3);
  EXPECT_EQ(counter.calls, 2) << "the callable itself is called, not a copy";
}

TEST(FunctionRef, ForwardsReferencesAndMoveOnlyArguments) {
  const auto fill = [](int& out, std::unique_ptr<int> in) { out = *in; };
  FunctionRef<void(int&, std::unique_ptr<int>)> ref = fill;
  int out = 0;
  ref(out, std::make_unique<int>(7));
  EXPECT_EQ(out, 7);
}

TEST(FunctionRef, ACopyRefersToTheSameCallable) {
  int calls = 0;
  const auto count = [&] { ++calls; };
  FunctionRef<void()> first = count;
  FunctionRef<void()> second = first;
  first();
  second();
  EXPECT_EQ(calls, 2);
  static_assert(sizeof(FunctionRef<void()>) == 2 * sizeof(void*));
}

}  // namespace
}  // namespace tandem

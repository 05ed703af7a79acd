// tests/support/heap_calls.h: how often this program asked operator new for memory, from all threads. A test program
// that calls these functions is linked with counting operators.
#pragma once

#include <cstdint>

namespace tandem::test {

void count_heap_calls(bool on);  // off at the start
int64_t take_heap_calls();       // that were counted since the last take

}  // namespace tandem::test

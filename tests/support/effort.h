// tests/support/effort.h: how much of a large random test to run. Sanitizers look for faults of memory, not of
// mathematics, and make everything ten to fifty times slower: under them a tenth of the cases walks the same code.
#pragma once

#include <cstdint>

namespace tandem::test {

constexpr int64_t effort(int64_t cases) {
#ifdef TANDEM_SANITIZED
  return cases / 10 > 0 ? cases / 10 : 1;
#else
  return cases;
#endif
}

}  // namespace tandem::test

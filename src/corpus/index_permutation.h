// corpus/index_permutation.h: a shuffle of 0 .. n-1 that is computed and not stored: any place of it in constant time.
//
//   A balanced Feistel network over the smallest even number of bits that holds n, walked until the value is below n
//   again (cycle walking; Black and Rogaway, 2002). The domain is below 4 n, so a walk takes four rounds of it on
//   average. A bijection for every n and key. Immutable: any thread.
#pragma once

#include <cstdint>

namespace tandem {

class IndexPermutation {
 public:
  IndexPermutation(uint64_t n, uint64_t key);  // 1 <= n <= 2^62

  uint64_t size() const { return n_; }
  uint64_t operator[](uint64_t index) const;   // index < n
  uint64_t position_of(uint64_t value) const;  // the inverse

 private:
  uint64_t round(uint64_t half, int i) const;

  uint64_t n_;
  uint64_t key_;
  unsigned half_bits_;
  uint64_t half_mask_;
};

}  // namespace tandem

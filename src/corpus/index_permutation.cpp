#include "corpus/index_permutation.h"

#include <bit>

#include "base/check.h"
#include "corpus/stable_random.h"

namespace tandem {
namespace {

constexpr int kRounds = 6;

}  // namespace

IndexPermutation::IndexPermutation(uint64_t n, uint64_t key) : n_(n), key_(key) {
  TANDEM_CHECK(n >= 1 && n <= uint64_t{1} << 62, "a permutation of 1 to 2^62 numbers");
  const auto bits = static_cast<unsigned>(std::bit_width(n - 1));
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
  half_mask_ = (uint64_t{1} << half_bits_) - 1;
}

uint64_t IndexPermutation::round(uint64_t half, int i) const {
  return combine_bits(key_ + static_cast<uint64_t>(i), half) & half_mask_;
}

uint64_t IndexPermutation::operator[](uint64_t index) const {
  TANDEM_DCHECK(index < n_, "an index of the permutation");
  do {
    uint64_t left = index >> half_bits_;
    uint64_t right = index & half_mask_;
    for (int i = 0; i < kRounds; ++i) {
      const uint64_t next = left ^ round(right, i);
      left = right;
      right = next;
    }
    index = left << half_bits_ | right;
  } while (index >= n_);
  return index;
}

uint64_t IndexPermutation::position_of(uint64_t value) const {
  TANDEM_DCHECK(value < n_, "a value of the permutation");
  do {
    uint64_t left = value >> half_bits_;
    uint64_t right = value & half_mask_;
    for (int i = kRounds - 1; i >= 0; --i) {
      const uint64_t previous = right ^ round(left, i);
      right = left;
      left = previous;
    }
    value = left << half_bits_ | right;
  } while (value >= n_);
  return value;
}

}  // namespace tandem

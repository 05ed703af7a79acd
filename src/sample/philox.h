// sample/philox.h: counter-based random numbers: draw i of stream `seed` is a pure function of (seed, i).
//
//   Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3; SC 2011). Integer
//   arithmetic only, so every platform gives the same bits; there is no state to save, restore or roll back.
#pragma once

#include <array>
#include <cstdint>

namespace tandem {

// One block of the generator: 128 random bits for a 128-bit counter and a 64-bit key.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// Draw `index` of stream `seed`: uniform over the multiples of 2^-53 in [0, 1).
constexpr double philox_uniform(uint64_t seed, uint64_t index) {
  const std::array<uint32_t, 4> bits =
      philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t wide = (uint64_t{bits[1]} << 32) | bits[0];
  return static_cast<double>(wide >> 11) * 0x1p-53;
}

}  // namespace tandem

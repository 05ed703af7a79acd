#include "base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace tandem {
namespace {

// Fractional parts of the cube roots of the first 64 primes (FIPS 180-4, section 4.2.2).
constexpr std::array<uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr std::array<uint32_t, 8> kInitialHash = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

}  // namespace

void Sha256::add_blocks_portable(Hash& hash, const uint8_t* blocks, size_t count) {
  for (; count > 0; --count, blocks += 64) {
    std::array<uint32_t, 64> w = {};
    for (size_t t = 0; t < 16; ++t) {
      for (size_t i = 0; i < 4; ++i) w[t] = w[t] << 8 | blocks[4 * t + i];
    }
    for (size_t t = 16; t < 64; ++t) {
      const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ w[t - 15] >> 3;
      const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ w[t - 2] >> 10;
      w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = hash;
    for (size_t t = 0; t < 64; ++t) {
      const uint32_t choice = (e & f) ^ (~e & g);
      const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
      const uint32_t t1 =
          h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + choice + kRoundConstants[t] + w[t];
      const uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + majority;
      h = g;
      g = f;
      f = e;
      e = d + t1;
      d = c;
      c = b;
      b = a;
      a = t1 + t2;
    }
    const Hash more = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < hash.size(); ++i) hash[i] += more[i];
  }
}

#if defined(__x86_64__)
// The instructions keep the hash as two vectors, (a b e f) and (c d g h), and do two rounds at a time.
__attribute__((target("sha,sse4.1"))) void Sha256::add_blocks_sha_ni(Hash& hash, const uint8_t* blocks, size_t count) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  auto* const words = reinterpret_cast<__m128i*>(hash.data());
  const __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128(words), 0xb1);
  const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(words + 1), 0x1b);
  __m128i abef = _mm_alignr_epi8(abcd, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, abcd, 0xf0);
  for (; count > 0; --count, blocks += 64) {
    const __m128i abef_before = abef;
    const __m128i cdgh_before = cdgh;
    __m128i w[4];
    for (size_t i = 0; i < 4; ++i) {
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks) + i), big_endian);
    }
    for (size_t r = 0; r < 16; ++r) {
      const auto* constants = reinterpret_cast<const __m128i*>(kRoundConstants.data() + 4 * r);
      const __m128i sum = _mm_add_epi32(w[r % 4], _mm_loadu_si128(constants));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
      if (r >= 12) continue;
      const __m128i last = w[(r + 3) % 4];
      const __m128i early = _mm_sha256msg1_epu32(w[r % 4], w[(r + 1) % 4]);
      w[r % 4] = _mm_sha256msg2_epu32(_mm_add_epi32(early, _mm_alignr_epi8(last, w[(r + 2) % 4], 4)), last);
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(words, _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(words + 1, _mm_alignr_epi8(dchg, feba, 8));
}

bool Sha256::has_sha_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_SSE4_1) == 0) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_SHA) != 0;
}
#else
void Sha256::add_blocks_sha_ni(Hash& hash, const uint8_t* blocks, size_t count) {
  add_blocks_portable(hash, blocks, count);
}
bool Sha256::has_sha_instructions() { return false; }
#endif

Sha256::Sha256(AddBlocks add_blocks) : add_blocks_(add_blocks), hash_(kInitialHash) {}
Sha256::Sha256() : Sha256(has_sha_instructions() ? &add_blocks_sha_ni : &add_blocks_portable) {}
Sha256 Sha256::portable() { return Sha256(&add_blocks_portable); }

void Sha256::add(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t left = bytes.size();
  const size_t held = num_bytes_ % 64;
  num_bytes_ += left;
  if (held > 0) {
    const size_t taken = std::min(left, 64 - held);
    std::memcpy(pending_.data() + held, data, taken);
    data += taken;
    left -= taken;
    if (held + taken < 64) return;
    add_blocks_(hash_, pending_.data(), 1);
  }
  add_blocks_(hash_, data, left / 64);
  if (left % 64 > 0) std::memcpy(pending_.data(), data + left / 64 * 64, left % 64);
}

Sha256Digest Sha256::finish() {
  const uint64_t bits = num_bytes_ * 8;
  std::array<std::byte, 72> padding = {std::byte{0x80}};
  const size_t zeros = (119 - num_bytes_ % 64) % 64;  // after the 0x80, up to 8 bytes before a block's end
  for (size_t i = 0; i < 8; ++i) padding[1 + zeros + i] = static_cast<std::byte>(bits >> (56 - 8 * i) & 0xff);
  add(std::span(padding).first(9 + zeros));
  Sha256Digest out = {};
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(hash_[i / 4] >> (24 - 8 * (i % 4)));
  return out;
}

Sha256Digest sha256(std::string_view text) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(text)));
  return hash.finish();
}

std::string sha256_hex(const Sha256Digest& digest) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : digest) {
    text.push_back(kHex[byte >> 4]);
    text.push_back(kHex[byte & 15]);
  }
  return text;
}

}  // namespace tandem

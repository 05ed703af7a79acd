// corpus/stable_random.h: hashes and random numbers that are the same on every machine and standard library: what
// decides a file's bytes, a data split or an example must not depend on std::hash or std::*_distribution.
//
//   Mixing: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014). Not cryptographic. Stateless or plain values.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace tandem {

constexpr uint64_t mix_bits(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

constexpr uint64_t combine_bits(uint64_t a, uint64_t b) { return mix_bits(a * 0x9E3779B97F4A7C15u ^ mix_bits(b)); }

// A hash of a byte stream that may come in parts: any cut gives the same value.
class StreamHash {
 public:
  void append(const void* bytes, size_t size) {
    const auto* in = static_cast<const unsigned char*>(bytes);
    length_ += size;
    while (num_pending_ != 0 && size != 0) {
      add_pending(*in++);
      --size;
    }
    for (; size >= 8; in += 8, size -= 8) {
      uint64_t word;
      std::memcpy(&word, in, 8);
      add_word(word);
    }
    while (size-- != 0) add_pending(*in++);
  }
  uint64_t value() const { return mix_bits(state_ ^ mix_bits(pending_ + 1) ^ length_ * 0x9E3779B97F4A7C15u); }

 private:
  void add_word(uint64_t word) {
    state_ = (state_ ^ word) * 0x9E3779B97F4A7C15u;
    state_ ^= state_ >> 29;
  }
  void add_pending(unsigned char byte) {
    pending_ |= uint64_t{byte} << (8 * num_pending_);
    if (++num_pending_ < 8) return;
    add_word(pending_);
    pending_ = 0;
    num_pending_ = 0;
  }

  uint64_t state_ = 0x243F6A8885A308D3u;  // the fraction of pi
  uint64_t pending_ = 0;
  unsigned num_pending_ = 0;
  uint64_t length_ = 0;
};

inline uint64_t stable_hash(std::string_view text) {
  StreamHash hash;
  hash.append(text.data(), text.size());
  return hash.value();
}

// A sequence of numbers that its start alone decides.
class StableRandom {
 public:
  explicit StableRandom(uint64_t start) : state_(start) {}
  uint64_t next() { return mix_bits(state_ += 0x9E3779B97F4A7C15u); }
  // 0 .. n-1, n >= 1. The bias is below n / 2^64.
  uint64_t below(uint64_t n) { return static_cast<uint64_t>(static_cast<unsigned __int128>(next()) * n >> 64); }

 private:
  uint64_t state_;
};

}  // namespace tandem

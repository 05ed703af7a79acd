#include "cache/prefix_hash.h"

#include <xxhash.h>

#include <string>

namespace tandem {
namespace {

PrefixHash hash_bytes(const void* data, size_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return {hash.low64, hash.high64};
}

}  // namespace

PrefixHash hash_prefix_root(std::string_view identity, int64_t hash_unit, std::string_view salt) {
  // Each part behind its length: ("ab", "c") and ("a", "bc") are different scopes.
  std::string bytes;
  const auto append_number = [&](uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) bytes.push_back(static_cast<char>(number >> shift & 0xff));
  };
  append_number(static_cast<uint64_t>(hash_unit));
  append_number(identity.size());
  bytes.append(identity);
  append_number(salt.size());
  bytes.append(salt);
  return hash_bytes(bytes.data(), bytes.size());
}

PrefixHash hash_prefix_unit(std::span<const TokenId> unit) { return hash_bytes(unit.data(), unit.size_bytes()); }

PrefixHash chain_prefix_hash(const PrefixHash& parent, const PrefixHash& unit) {
  const uint64_t words[] = {parent.low, parent.high, unit.low, unit.high};
  return hash_bytes(words, sizeof words);
}

}  // namespace tandem

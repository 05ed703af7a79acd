// cache/prefix_hash.h: the chained 128-bit hash that names a prefix: h_0 = H(identity, hash_unit, salt) and
// h_i = H(h_{i−1}, H(tokens of unit i)), H being XXH3-128. The inner hash does not depend on what came before, so a
// unit is hashed once however many trees it is looked for in. Not a cryptographic hash: who finds a prefix by it
// compares the tokens. Source: systems.md §2.2. Pure functions, any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/ids.h"

namespace tandem {

struct PrefixHash {
  uint64_t low = 0;
  uint64_t high = 0;
  auto operator<=>(const PrefixHash&) const = default;
};

PrefixHash hash_prefix_root(std::string_view identity, int64_t hash_unit, std::string_view salt);

// The inner hash, of one unit's tokens alone.
PrefixHash hash_prefix_unit(std::span<const TokenId> unit);

// h_i of h_{i−1} and the inner hash.
using ChainHash = PrefixHash(const PrefixHash& parent, const PrefixHash& unit);
PrefixHash chain_prefix_hash(const PrefixHash& parent, const PrefixHash& unit);

}  // namespace tandem

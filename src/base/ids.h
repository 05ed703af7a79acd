// base/ids.h: distinct integer types for things that must not be mixed up.
#pragma once

#include <compare>
#include <cstdint>

namespace tandem {

template <class Tag>
struct Id {
  int32_t value = 0;
  constexpr Id() = default;
  constexpr explicit Id(int32_t v) : value(v) {}
  constexpr auto operator<=>(const Id&) const = default;
};

using TokenId = Id<struct TokenTag>;            // a row of the embedding table
using ExpertId = Id<struct ExpertTag>;          // a routed expert of one layer
using SeqId = Id<struct SeqTag>;                // a sequence known to the engine
using BlockId = Id<struct BlockTag>;            // a block of the cache's pool; 0 is the null block, which nobody owns
using CheckpointId = Id<struct CheckpointTag>;  // a stored KDA state of all groups

}  // namespace tandem

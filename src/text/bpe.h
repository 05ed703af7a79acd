// text/bpe.h: rank-BPE of one piece (tiktoken's algorithm): start with single bytes, merge the adjacent pair whose
// bytes together have the lowest rank, the leftmost of equals, until no adjacent pair is a token.
//
//   Ranks do not form a merge list: a token may be reached by other pairs than the ones it was trained from, so pairs
//   are looked up by their bytes. Short pieces scan an array; long ones keep the pairs in a heap: O(n log n).
//   A BpeEncoder holds scratch: one thread at a time. The table outlives it.
#pragma once

#include <cstdint>
#include <queue>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "text/rank_table.h"

namespace tandem {

class BpeEncoder {
 public:
  explicit BpeEncoder(const RankTable& table) : table_(table) {}

  // Appends the ids of `piece`, which is not empty.
  void encode(std::string_view piece, std::vector<TokenId>& ids);

 private:
  void encode_short(std::string_view piece, std::vector<TokenId>& ids);
  void encode_long(std::string_view piece, std::vector<TokenId>& ids);
  int32_t rank_of(std::string_view piece, uint32_t begin, uint32_t end) const;

  const RankTable& table_;

  // encode_long: the node that starts at byte i ends at next_[i]; a merged node's right half is dead.
  std::vector<uint32_t> next_;
  std::vector<uint32_t> previous_;
  std::vector<int32_t> pair_rank_;  // of node i with its right neighbour; kNoRank: none, dead or last
  std::vector<uint64_t> heap_;      // rank << 32 | start; stale when pair_rank_ says otherwise
};

}  // namespace tandem

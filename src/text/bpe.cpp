#include "text/bpe.h"

#include <algorithm>
#include <array>
#include <functional>

namespace tandem {
namespace {

constexpr size_t kShortPieceBytes = 48;  // up to here the quadratic scan of a few cache lines beats the heap

}  // namespace

inline int32_t BpeEncoder::rank_of(std::string_view piece, uint32_t begin, uint32_t end) const {
  if (end - begin == 2) return table_.pair(static_cast<uint8_t>(piece[begin]), static_cast<uint8_t>(piece[begin + 1]));
  return table_.find(piece.substr(begin, end - begin));
}

void BpeEncoder::encode(std::string_view piece, std::vector<TokenId>& ids) {
  if (piece.size() == 1) {
    ids.emplace_back(table_.single(static_cast<uint8_t>(piece[0])));
    return;
  }
  if (const int32_t whole = table_.find(piece); whole != RankTable::kNoRank) {
    ids.emplace_back(whole);
    return;
  }
  if (piece.size() <= kShortPieceBytes) {
    encode_short(piece, ids);
  } else {
    encode_long(piece, ids);
  }
}

void BpeEncoder::encode_short(std::string_view piece, std::vector<TokenId>& ids) {
  std::array<uint32_t, kShortPieceBytes + 1> starts;  // starts[num_nodes] is the end of the piece
  std::array<int32_t, kShortPieceBytes> ranks;        // of node i with node i + 1
  auto num_nodes = static_cast<uint32_t>(piece.size());
  for (uint32_t i = 0; i <= num_nodes; ++i) starts[i] = i;
  for (uint32_t i = 0; i + 1 < num_nodes; ++i) ranks[i] = rank_of(piece, i, i + 2);
  while (num_nodes > 1) {
    const auto lowest = std::min_element(ranks.begin(), ranks.begin() + num_nodes - 1);
    if (*lowest == RankTable::kNoRank) break;
    const auto left = static_cast<uint32_t>(lowest - ranks.begin());
    std::copy(starts.begin() + left + 2, starts.begin() + num_nodes + 1, starts.begin() + left + 1);
    std::copy(ranks.begin() + left + 1, ranks.begin() + num_nodes - 1, ranks.begin() + left);
    --num_nodes;
    if (left + 1 < num_nodes) ranks[left] = rank_of(piece, starts[left], starts[left + 2]);
    if (left > 0) ranks[left - 1] = rank_of(piece, starts[left - 1], starts[left + 1]);
  }
  for (uint32_t i = 0; i < num_nodes; ++i) {
    ids.emplace_back(starts[i + 1] - starts[i] == 1 ? table_.single(static_cast<uint8_t>(piece[starts[i]]))
                                                    : rank_of(piece, starts[i], starts[i + 1]));
  }
}

void BpeEncoder::encode_long(std::string_view piece, std::vector<TokenId>& ids) {
  const auto size = static_cast<uint32_t>(piece.size());
  next_.resize(size);
  previous_.resize(size + 1);
  pair_rank_.resize(size);
  heap_.clear();
  for (uint32_t i = 0; i < size; ++i) {
    next_[i] = i + 1;
    previous_[i + 1] = i;
    pair_rank_[i] = i + 1 < size ? rank_of(piece, i, i + 2) : RankTable::kNoRank;
    if (pair_rank_[i] != RankTable::kNoRank) heap_.push_back(static_cast<uint64_t>(pair_rank_[i]) << 32 | i);
  }
  constexpr std::greater<uint64_t> kLowestFirst;
  std::make_heap(heap_.begin(), heap_.end(), kLowestFirst);
  const auto refresh = [&](uint32_t node) {
    const uint32_t right = next_[node];
    pair_rank_[node] = right < size ? rank_of(piece, node, next_[right]) : RankTable::kNoRank;
    if (pair_rank_[node] == RankTable::kNoRank) return;
    heap_.push_back(static_cast<uint64_t>(pair_rank_[node]) << 32 | node);
    std::push_heap(heap_.begin(), heap_.end(), kLowestFirst);
  };
  while (!heap_.empty()) {
    const uint64_t entry = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), kLowestFirst);
    heap_.pop_back();
    const auto node = static_cast<uint32_t>(entry);
    // An entry left behind by a merge. One whose rank has come back means the same bytes and is right again.
    if (pair_rank_[node] != static_cast<int32_t>(entry >> 32)) continue;
    const uint32_t right = next_[node];
    next_[node] = next_[right];
    previous_[next_[right]] = node;
    pair_rank_[right] = RankTable::kNoRank;
    refresh(node);
    if (node > 0) refresh(previous_[node]);
  }
  for (uint32_t i = 0; i < size; i = next_[i]) {
    ids.emplace_back(next_[i] - i == 1 ? table_.single(static_cast<uint8_t>(piece[i])) : rank_of(piece, i, next_[i]));
  }
}

}  // namespace tandem

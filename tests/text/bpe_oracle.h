// tests/text/bpe_oracle.h: rank-BPE written a second time, for judging the first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <list>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace tandem::test {

class BpeOracle {
 public:
  explicit BpeOracle(const std::vector<std::string>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) ranks_.emplace(tokens[i], static_cast<int32_t>(i));
  }

  // The definition, word for word: rescan every pair after every merge.
  std::vector<TokenId> naive(std::string_view piece) const {
    if (const int32_t whole = rank(piece); whole != kNone) return {TokenId(whole)};
    std::vector<std::string_view> parts;
    for (size_t i = 0; i < piece.size(); ++i) parts.push_back(piece.substr(i, 1));
    while (true) {
      int32_t lowest = kNone;
      size_t where = 0;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const int32_t candidate = rank(joined(parts[i], parts[i + 1]));
        if (candidate < lowest) {
          lowest = candidate;
          where = i;
        }
      }
      if (lowest == kNone) break;
      parts[where] = joined(parts[where], parts[where + 1]);
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(where) + 1);
    }
    std::vector<TokenId> ids;
    for (const auto part : parts) ids.emplace_back(rank(part));
    return ids;
  }

  // The same for pieces too long for that: a std::set of all pairs, each entry removed when its pair goes away.
  std::vector<TokenId> ordered_set(std::string_view piece) const {
    if (const int32_t whole = rank(piece); whole != kNone) return {TokenId(whole)};
    using Parts = std::list<std::string_view>;
    Parts parts;
    for (size_t i = 0; i < piece.size(); ++i) parts.push_back(piece.substr(i, 1));
    std::set<std::pair<int32_t, const char*>> pairs;
    std::unordered_map<const char*, Parts::iterator> at;
    const auto change = [&](Parts::iterator left, bool add) {
      if (left == parts.end() || std::next(left) == parts.end()) return;
      const int32_t pair_rank = rank(joined(*left, *std::next(left)));
      if (pair_rank == kNone) return;
      if (add) {
        pairs.emplace(pair_rank, left->data());
      } else {
        pairs.erase({pair_rank, left->data()});
      }
    };
    for (auto it = parts.begin(); it != parts.end(); ++it) {
      at[it->data()] = it;
      change(it, true);
    }
    while (!pairs.empty()) {
      const auto left = at[pairs.begin()->second];
      const auto right = std::next(left);
      const auto before = left == parts.begin() ? parts.end() : std::prev(left);
      for (const auto it : {before, left, right}) change(it, false);
      *left = joined(*left, *right);
      at.erase(right->data());
      parts.erase(right);
      change(before, true);
      change(left, true);
    }
    std::vector<TokenId> ids;
    for (const auto part : parts) ids.emplace_back(rank(part));
    return ids;
  }

 private:
  static constexpr int32_t kNone = INT32_MAX;
  // Neighbours in one piece of memory.
  static std::string_view joined(std::string_view left, std::string_view right) {
    return {left.data(), left.size() + right.size()};
  }
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  int32_t rank(std::string_view bytes) const {
    const auto found = ranks_.find(bytes);
    return found == ranks_.end() ? kNone : found->second;
  }
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ranks_;
};

}  // namespace tandem::test

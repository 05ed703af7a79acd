// corpus/chat_draw.h: the random choices of one synthetic conversation, and the rule that keeps training and test data
// apart.
//
//   What a conversation is about (a sum, a fact, a call) is an item with a key that states its meaning and not its
//   wording: "add:17:25". The key's hash alone decides the split, so an item of one split cannot occur in the other, in
//   any phrasing and under any seed. A choice that must have a meaning goes through item().
//   The same start gives the same choices on every machine. Threading: one owner.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "corpus/stable_random.h"

namespace tandem {

enum class ChatSplit { kTrain, kTest };
ChatSplit chat_split_of(std::string_view key);  // one key of eight is kTest

class ChatDraw {
 public:
  ChatDraw(uint64_t start, ChatSplit split) : random_(start), split_(split) {}

  uint64_t below(uint64_t n) { return random_.below(n); }
  int64_t between(int64_t low, int64_t high) {  // both included
    return low + static_cast<int64_t>(below(static_cast<uint64_t>(high - low + 1)));
  }
  bool chance(int percent) { return below(100) < static_cast<uint64_t>(percent); }

  std::string_view pick(std::span<const std::string_view> choices) { return choices[below(choices.size())]; }

  // Draws make() until its .key is of this split. The choices behind make() must include keys of both.
  template <class Make>
  auto item(Make make) {
    for (int attempt = 0; attempt < 100000; ++attempt) {
      auto candidate = make();
      if (chat_split_of(candidate.key) != split_) continue;
      keys_.push_back(candidate.key);
      return candidate;
    }
    check_failed(__FILE__, __LINE__, "item", "a kind of items has keys of both splits");
  }

  const std::vector<std::string>& keys() const { return keys_; }

 private:
  StableRandom random_;
  ChatSplit split_;
  std::vector<std::string> keys_;
};

// {0} … {9} of `form` replaced by the values; a form is text of this program.
std::string fill(std::string_view form, std::initializer_list<std::string_view> values);
// The first ASCII letter made a capital.
std::string capitalized(std::string text);

}  // namespace tandem

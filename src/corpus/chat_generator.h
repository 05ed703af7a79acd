// corpus/chat_generator.h: synthetic conversations in the K3 chat format, for teaching a small model and for testing
// it.
//
//   Example (seed, family, split, index) is a function of these four alone (and of the options and the tokenizer, which
//   measures gaps): any index can be asked for, in any order, on any machine. Items of the two splits are disjoint
//   (chat_draw.h). Every reply is what the reply parser reads back. Immutable: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "corpus/chat_example.h"
#include "text/tokenizer.h"

namespace tandem {

// Of 100 places of a mixture, by family (recall and arithmetic most often).
inline constexpr std::array<int, kNumChatFamilies> kDefaultChatShares = {5, 18, 8, 16, 9, 7, 13, 10, 5, 6, 3};

struct ChatGeneratorOptions {
  uint64_t seed = 1;
  int64_t min_gap_tokens = 8;
  int64_t max_gap_tokens = 1024;  // gaps are drawn so that every octave between the two is equally likely
  int64_t min_questions = 1;      // of a kRecall conversation: how many of its facts are asked for
  int64_t max_questions = 1;
  std::array<int, kNumChatFamilies> shares = kDefaultChatShares;
  std::vector<std::string> prose;        // paragraphs to fill gaps with, next to the generator's own sentences
  const Tokenizer* tokenizer = nullptr;  // measures gaps and outlives the generator; null: four bytes are one token
};

class ChatGenerator {
 public:
  explicit ChatGenerator(ChatGeneratorOptions options);

  // `gap_tokens`: of kRecall and kMultiTurn, how long the filler is at least; it is a sentence longer at most in each
  // turn that it is spread over (four at most). Unset: drawn.
  ChatExample example(ChatFamily family, ChatSplit split, uint64_t index,
                      std::optional<int64_t> gap_tokens = std::nullopt) const;

  // The family of a mixture's place `index`, by the options' shares.
  ChatFamily family_of(uint64_t index) const;

 private:
  ChatGeneratorOptions options_;
  std::vector<int64_t> prose_tokens_;  // length of each paragraph of options_.prose
  int total_share_ = 0;
};

}  // namespace tandem

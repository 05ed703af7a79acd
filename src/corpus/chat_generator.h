// corpus/chat_generator.h: synthetic conversations in the K3 chat format, for teaching a small model and for testing
// it.
//
//   Example (seed, family, split, index) is a function of these four alone (and of the options and the tokenizer, which
//   measures gaps): any index can be asked for, in any order, on any machine. Items of the two splits are disjoint
//   (chat_draw.h). Every reply is what the reply parser reads back. Immutable: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "corpus/chat_example.h"
#include "text/tokenizer.h"

namespace tandem {

struct ChatGeneratorOptions {
  uint64_t seed = 1;
  int64_t max_gap_tokens = 1024;         // gaps are drawn so that every octave up to here is equally likely
  std::vector<std::string> prose;        // paragraphs to fill gaps with, next to the generator's own sentences
  const Tokenizer* tokenizer = nullptr;  // measures gaps and outlives the generator; null: four bytes are one token
};

class ChatGenerator {
 public:
  explicit ChatGenerator(ChatGeneratorOptions options) : options_(std::move(options)) {}

  // `gap_tokens`: of kRecall and kMultiTurn, how long the filler is at least; it is a sentence longer at most in each
  // turn that it is spread over (four at most). Unset: drawn.
  ChatExample example(ChatFamily family, ChatSplit split, uint64_t index,
                      std::optional<int64_t> gap_tokens = std::nullopt) const;

  // The family of a mixture's place `index`, by the shares below (recall and arithmetic most often).
  ChatFamily family_of(uint64_t index) const;

 private:
  ChatGeneratorOptions options_;
};

}  // namespace tandem

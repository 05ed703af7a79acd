// evaluate/chat_cases.h: held-out conversations of the generator as prompts to decode and replies to judge.
//
//   Cases are of ChatSplit::kTest: no fact, sum, call or text of theirs occurs in training data. The prompt is rendered
//   as the API renders it; the reply is read by the engine's own parser. Arithmetic is held to two-digit numbers.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "corpus/chat_generator.h"
#include "evaluate/eval_recipe.h"
#include "evaluate/greedy_batch.h"
#include "text/reply_parser.h"

namespace tandem {

struct ChatCase {
  ChatExample example;
  std::string operation;  // kArithmetic: "add", "subtract" or "multiply", as the item's key says
  GreedyTask task;        // up to twice the expected reply's tokens and 32
};

// The first `cases.cases` test examples. kUnsupported when the tokenizer lacks a control name.
Result<std::vector<ChatCase>> make_chat_cases(const ChatGenerator& generator, const Tokenizer& tokenizer,
                                              const FamilyCases& cases);

// What the model wrote, as the API would return it.
Result<ParsedReply> read_reply(const Tokenizer& tokenizer, const ChatRequest& request, const GreedyReply& reply);

}  // namespace tandem

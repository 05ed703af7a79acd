// evaluate/eval_recipe.h: what `tandem-train eval` measures, as a JSON file.
//
//   {"seed": 1, "trained_length": 8192, "batch": 24,
//    "prose": {"files": ["heldout/*.txt"], "max_bytes": 400000, "window_tokens": 2048, "context_tokens": 512},
//    "law_tokens": 512,
//    "gap_prose": ["…"], "families": {"greeting": 100, …}, "recall": {"256": 100, …}}
//   Paths are relative to the recipe's folder; * and ? stand for parts of a file name. Every key is optional; what a
//   recipe does not name is not measured, but something is. Unknown keys are refused. `recall` is by distance in
//   tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "corpus/chat_example.h"
#include "evaluate/text_score.h"

namespace tandem {

struct FamilyCases {
  ChatFamily family = ChatFamily::kGreeting;
  int64_t cases = 0;
  std::optional<int64_t> distance_tokens;  // kRecall

  std::string name() const;  // "copy", "recall@4096"
};

struct EvalRecipe {
  uint64_t seed = 1;
  int64_t batch = 16;                     // sequences decoded together
  std::optional<int64_t> trained_length;  // tokens; longer distances are marked in the report
  int64_t law_tokens = 0;                 // of prefill ≡ decode; 0: not checked
  bool score_prose = true;                // false: its files serve the law alone
  std::vector<std::string> prose_files;   // patterns, absolute or relative to the working folder
  int64_t prose_max_bytes = 400'000;      // of all files together, an equal share of each
  TextScoreOptions prose;
  std::vector<std::string> gap_prose;  // patterns of texts that fill gaps, next to the generator's own sentences
  std::vector<FamilyCases> chats;      // in the order of the families, recall by distance
};

// `origin` names the file in messages; `folder` is what its paths are relative to.
Result<EvalRecipe> parse_eval_recipe(std::string_view json_text, std::string_view origin, const std::string& folder);

// Keeps what is named: "prose", "laws", a family, "recall" or "recall@4096". kInvalidArgument for anything else.
Status keep_only(EvalRecipe& recipe, const std::vector<std::string>& names);

// Existing files of the patterns, sorted within each pattern, none twice.
std::vector<std::string> matching_files(const std::vector<std::string>& patterns);

}  // namespace tandem

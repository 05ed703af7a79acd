// engine/golden_logits.h: a safetensors file of prompts and the logits they must give: what shows that a checkpoint
// still computes what it did where the file was made.
//
//   <id>.ids [T] I32                        the prompt; or the prompts stand in a JSON file beside it, of the same name
//                                           but for .json and in the form of `tandem score --input`
//   <id>.logits [n, V] F32                  of the last n rows
//   <id>.layer.<l>.router_idx [T, k] I32    optional: the chosen experts
//   `tandem score --router` writes the latter two, write_golden_logits() all three.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "engine/test_run.h"

namespace tandem {

inline constexpr std::string_view kGoldenLogitsName = "golden_logits.safetensors";

struct GoldenPrompt {
  std::string id;
  std::vector<TokenId> tokens;
  TestRun run;
};

// Every fault of the file in one Status: no prompt, logits without a prompt, shapes that do not fit `vocab_size`.
Result<std::vector<GoldenPrompt>> read_golden_logits(const std::string& path, int64_t vocab_size);

Status write_golden_logits(const std::string& path, const std::vector<GoldenPrompt>& prompts);

}  // namespace tandem

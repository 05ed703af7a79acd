// evaluate/evaluation.h: one model measured on held-out data, by the engine, section by section.
//
//   Prose: bits per byte beside general compressors on the same bytes. Law: prefill ≡ decode on this model. Chats:
//   greedy replies to test conversations, judged exactly (judge.h), shares with their 95 % interval (wilson.h). A model
//   that knows nothing scores near zero and is no error. Everything depends on the model's files, the recipe and the
//   seed alone. Threading: engine thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/result.h"
#include "engine/loaded_model.h"
#include "evaluate/compressors.h"
#include "evaluate/eval_recipe.h"
#include "evaluate/text_score.h"

namespace tandem {

struct EvalShare {
  std::string section;  // "tool_call", "recall@4096"
  std::string metric;   // "right", "valid call", "exact call"
  int64_t successes = 0;
  int64_t cases = 0;
};

struct EvalSection {
  std::string name;
  std::vector<EvalShare> shares;
  int64_t cases = 0;
  int64_t ended = 0;  // replies that the model ended itself
  int64_t prompt_tokens = 0;
  int64_t reply_tokens = 0;
  double times_trained_length = 0;  // of recall beyond it; 0: within, or not known
  double seconds = 0;
};

struct EvalFailure {
  std::string section;
  std::string prompt_tail;  // the last tokens, control names spelled out
  std::string expected;
  std::string got;
  std::string fault;
};

struct ProseScore {
  struct File {
    std::string path;
    TextScore score;
  };
  std::vector<File> files;
  TextScore total;
  std::vector<CompressedSize> compressors;  // of all files together, one behind the other
  std::string reason;                       // why there are no numbers
};

struct EvalReport {
  std::string model;
  uint64_t seed = 0;
  std::optional<ProseScore> prose;
  std::optional<PrefillDecodeLaw> law;
  std::string law_text;  // what it was checked on
  std::vector<EvalSection> sections;
  std::vector<EvalFailure> failures;
  double seconds = 0;
};

struct EvalOptions {
  int64_t max_failures = 0;  // kept for each section
};

struct EvalProgress {
  std::string section;
  int64_t done = 0;
  int64_t total = 0;
};

// What the engine refuses, kNonFinite with the section's name, or what is wrong with the model's tokenizer.
Result<EvalReport> evaluate(LoadedModel& model, const EvalRecipe& recipe, const EvalOptions& options,
                            FunctionRef<void(const EvalProgress&)> progress);

std::string eval_report_text(const EvalReport& report);  // a table, the last line ended
std::string eval_report_json(const EvalReport& report);  // one document on one line, without its end

}  // namespace tandem

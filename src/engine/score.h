// engine/score.h: teacher-forced evaluation: the model's numbers at every position of given prompts.
//
//   Output tensors are named `<id>.<what>`, layers counted from 0, F32 or I32 (T tokens of the prompt):
//     logits [T, V]
//     with hidden   layer.<l>.out [T, D], final_in [T, D], final_hidden [T, D]
//     with state    layer.<l>.kda_state [H, K, V], layer.<l>.conv_{q,k,v} [P, W−1] oldest first,
//                   layer.<l>.mla_latent [T, rank + rope]
//     with router   layer.<l>.router_idx, layer.<l>.router_w [T, k], ids ascending
//   Threading: engine thread only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/function_ref.h"
#include "base/result.h"
#include "engine/loaded_model.h"

namespace tandem {

struct ScorePrompt {
  std::string id;
  std::vector<TokenId> tokens;
};

// {"prompts":[{"id":"a","tokens":[1,2,3]}]}; every fault of the file in one Status. `origin` names it in messages.
Result<std::vector<ScorePrompt>> parse_score_input(std::string_view json_text, std::string_view origin);

struct ScoreOptions {
  int64_t prefill_chunk = 0;  // tokens of one step; 0: the whole prompt in one
  bool decode = false;        // a token at a time, in decode mode
  bool batch = false;         // all prompts in every step plan, else one prompt after the other
  bool hidden = false;
  bool state = false;
  bool router = false;
};

struct ScoreTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::variant<std::vector<float>, std::vector<int32_t>> values;
};

struct PromptScore {
  std::string id;
  int64_t num_tokens = 0;
  int64_t num_scored = 0;              // T − 1 predictions
  double negative_log_likelihood = 0;  // sum over them, natural logarithm
};

struct ScoreResult {
  std::vector<ScoreTensor> tensors;
  std::vector<PromptScore> prompts;
  double perplexity() const;  // over all predictions of all prompts; NaN when there are none
};

// kNonFinite when a logit is NaN or infinite, naming prompt and position. `progress` hears tokens done of all.
Result<ScoreResult> score(LoadedModel& model, const std::vector<ScorePrompt>& prompts, const ScoreOptions& options,
                          FunctionRef<void(int64_t done, int64_t total)> progress);

}  // namespace tandem

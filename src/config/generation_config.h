// config/generation_config.h: the sampling defaults and stop ids that a checkpoint states for itself.
//
//   generation_config.json: temperature (default 1.0), top_p (default 0.95), top_k, min_p, repetition_penalty (default
//   off), do_sample (false: greedy), eos_token_id (a number or a list). Other fields are ignored. All problems of a
//   file are reported in one Status, a line each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem {

struct GenerationConfig {
  double temperature = 1.0;            // [0, 2]
  double top_p = 0.95;                 // [0, 1]
  int32_t top_k = 0;                   // 0: off
  double min_p = 0.0;                  // [0, 1]
  double repetition_penalty = 1.0;     // (0, 10]; 1 is off
  std::vector<int32_t> eos_token_ids;  // as listed, each once; empty: the file states none
};

// `origin` names the file in messages.
Result<GenerationConfig> parse_generation_config(std::string_view json_text, std::string_view origin);

// Reads <model_dir>/generation_config.json; the defaults when there is no such file.
Result<GenerationConfig> load_generation_config(const std::string& model_dir);

}  // namespace tandem

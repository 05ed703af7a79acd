// apps/tandem/sampling_flags.h: the sampling flags, laid over what the checkpoint recommends.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "command.h"
#include "config/generation_config.h"
#include "sample/sampler.h"

namespace tandem::app {

struct SamplingFlags {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;
  SamplingParams params;  // the fields with a default of their own
  std::optional<uint64_t> seed;
  std::vector<std::string> logit_bias;  // "ID=BIAS"
};

void add_sampling_flags(CLI::App* command, SamplingFlags& flags);

// Each: the flag, else generation_config.json, else temperature 1.0, top_p 0.95 and the others off.
Result<SamplingParams> resolve_sampling(const SamplingFlags& flags, const GenerationConfig& defaults);

}  // namespace tandem::app

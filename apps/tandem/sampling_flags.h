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
  std::optional<double> temperature, top_p;
  SamplingParams params;  // the fields with a default of their own
  std::optional<uint64_t> seed;
  std::vector<std::string> logit_bias;  // "ID=BIAS"
};

void add_sampling_flags(CLI::App* command, SamplingFlags& flags);

// temperature and top_p: the flag, else generation_config.json, else 1.0 and 0.95.
Result<SamplingParams> resolve_sampling(const SamplingFlags& flags, const GenerationConfig& defaults);

}  // namespace tandem::app

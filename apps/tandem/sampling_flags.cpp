#include "sampling_flags.h"

#include <CLI/CLI.hpp>
#include <charconv>

#include "base/cat.h"

namespace tandem::app {
namespace {

Result<LogitBias> parse_logit_bias(const std::string& text) {
  const size_t equals = text.find('=');
  int32_t id = 0;
  float bias = 0.f;
  if (equals != std::string::npos) {
    const char* const begin = text.data();
    const char* const end = begin + text.size();
    const auto id_end = std::from_chars(begin, begin + equals, id);
    const auto bias_end = std::from_chars(begin + equals + 1, end, bias);
    if (id_end.ec == std::errc() && id_end.ptr == begin + equals && bias_end.ec == std::errc() && bias_end.ptr == end) {
      return LogitBias{TokenId(id), bias};
    }
  }
  return Status::invalid(cat("--logit-bias: expected ID=BIAS, for example 17=-2.5, found \"", text, "\""));
}

}  // namespace

void add_sampling_flags(CLI::App* command, SamplingFlags& flags) {
  command->add_option("--temperature", flags.temperature, "0 is greedy (default: generation_config.json, else 1)");
  command->add_option("--top-p", flags.top_p, "nucleus (default: generation_config.json, else 0.95)");
  command->add_option("--top-k", flags.top_k, "best k only; 0 is off");
  command->add_option("--min-p", flags.min_p, "at least this times as probable as the best");
  command->add_option("--repetition-penalty", flags.repetition_penalty, "over prompt and reply; 1 is off");
  command->add_option("--presence-penalty", flags.params.presence_penalty, "over the reply")->capture_default_str();
  command->add_option("--frequency-penalty", flags.params.frequency_penalty, "over the reply")->capture_default_str();
  command->add_option("--logit-bias", flags.logit_bias, "ID=BIAS, several with commas")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--seed", flags.seed, "same seed, same tokens");
}

Result<SamplingParams> resolve_sampling(const SamplingFlags& flags, const GenerationConfig& defaults) {
  SamplingParams params = flags.params;
  params.temperature = flags.temperature.value_or(defaults.temperature);
  params.top_p = flags.top_p.value_or(defaults.top_p);
  params.top_k = flags.top_k.value_or(defaults.top_k);
  params.min_p = flags.min_p.value_or(defaults.min_p);
  params.repetition_penalty = flags.repetition_penalty.value_or(defaults.repetition_penalty);
  params.seed = flags.seed;
  for (const std::string& text : flags.logit_bias) {
    const Result<LogitBias> bias = parse_logit_bias(text);
    if (!bias.is_ok()) return bias.status();
    params.logit_bias.push_back(bias.value());
  }
  return params;
}

}  // namespace tandem::app

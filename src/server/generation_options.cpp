#include "server/generation_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "server/field_reader.h"
#include "text/field.h"

namespace tandem {
namespace {

constexpr double kMaxLogitBias = 100.0;

void read_logit_bias(FieldReader& fields, int64_t vocab_size, std::vector<LogitBias>& out) {
  const JsonValue* biases = fields.object("logit_bias");
  if (biases == nullptr) return;
  for (const auto& [key, value] : biases->members()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc{} || end != key.data() + key.size() || cat(id) != key || id < 0 || id >= vocab_size) {
      fields.fail(Status::invalid(cat("logit_bias: expected token ids of 0 to ", vocab_size - 1, " as keys, found \"",
                                      key.substr(0, 64), "\"")));
      return;
    }
    const auto bias = json_number(value);
    if (!bias || std::abs(*bias) > kMaxLogitBias) {
      fields.fail(bad_field(cat("logit_bias.", key), "a number in [-100, 100]", &value));
      return;
    }
    out.push_back({TokenId(id), static_cast<float>(*bias)});
  }
}

void read_sampling(FieldReader& fields, int64_t vocab_size, SamplingParams& sampling) {
  sampling.temperature = fields.number("temperature", 0.0, 2.0).value_or(sampling.temperature);
  sampling.top_p = fields.number("top_p", 0.0, 1.0).value_or(sampling.top_p);
  sampling.top_k = static_cast<int32_t>(fields.integer("top_k", -1, INT32_MAX).value_or(sampling.top_k));
  sampling.min_p = fields.number("min_p", 0.0, 1.0).value_or(sampling.min_p);
  sampling.presence_penalty = fields.number("presence_penalty", -2.0, 2.0).value_or(sampling.presence_penalty);
  sampling.frequency_penalty = fields.number("frequency_penalty", -2.0, 2.0).value_or(sampling.frequency_penalty);
  constexpr double kLeast = std::numeric_limits<double>::min();
  sampling.repetition_penalty = fields.number("repetition_penalty", kLeast, 1e6).value_or(sampling.repetition_penalty);
  if (const auto typical = fields.number("typical_p", 0.0, 1.0); typical && *typical != 1.0) {
    fields.refuse("typical_p", "1, which is off: this sampler has no typical_p");
  }
  if (const auto seed = fields.bits64("seed")) sampling.seed = *seed;
  read_logit_bias(fields, vocab_size, sampling.logit_bias);
}

void read_stream_fields(const JsonValue& body, FieldReader& fields, GenerationOptions& options) {
  options.stream = fields.flag("stream", false);
  if (fields.object("stream_options") == nullptr) return;
  FieldReader inner(*body.find("stream_options"), "stream_options.");
  options.include_usage = inner.flag("include_usage", false);
  options.continuous_usage = inner.flag("continuous_usage_stats", false);
  options.internal_content = inner.flag("include_internal_content", false);
  fields.fail(inner.status());
}

// Known fields that change nothing here; a wrong type is still a mistake of the client's.
void check_ignored_fields(FieldReader& fields) {
  for (const std::string_view key : {"user", "service_tier", "safety_identifier", "prompt_cache_key"})
    fields.string(key);
  fields.object("metadata");
  fields.boolean("store");
}

}  // namespace

Result<GenerationOptions> read_generation_options(const JsonValue& body, const ApiContext& context) {
  const int64_t vocab_size = context.engine.facts().vocab_size;
  FieldReader fields(body);
  GenerationOptions options;
  options.sampling = context.options.default_sampling;
  read_sampling(fields, vocab_size, options.sampling);
  options.num_candidates = fields.integer("n", 1, context.options.max_candidates).value_or(1);
  options.max_tokens = fields.integer("max_completion_tokens", 1, INT64_MAX);
  const auto older_name = fields.integer("max_tokens", 1, INT64_MAX);
  if (!options.max_tokens) options.max_tokens = older_name;
  options.min_tokens = fields.integer("min_tokens", 0, INT64_MAX).value_or(0);
  if (options.max_tokens && options.min_tokens > *options.max_tokens) {
    fields.refuse("min_tokens", cat("at most max_tokens, ", *options.max_tokens));
  }
  options.stop = fields.strings("stop", kMaxStopStrings);
  options.include_stop = fields.flag("include_stop_str_in_output", false);
  options.stop_token_ids = fields.token_ids("stop_token_ids", vocab_size);
  options.ignore_eos = fields.flag("ignore_eos", false);
  read_stream_fields(body, fields, options);
  options.return_token_ids = fields.flag("return_token_ids", false);
  options.skip_special_tokens = fields.flag("skip_special_tokens", true);
  options.explain_cache = fields.flag("explain_cache", context.options.explain_cache);
  options.priority = static_cast<int32_t>(fields.integer("priority", INT32_MIN, INT32_MAX).value_or(0));
  options.cache_salt = fields.string("cache_salt").value_or("");
  options.request_id = fields.string("request_id").value_or("");
  check_ignored_fields(fields);
  TANDEM_RETURN_IF_ERROR(fields.status());
  return options;
}

Status check_strict_vendor(const JsonValue& body, const GenerationOptions& options) {
  const auto differs = [&](std::string_view key, double value, double wanted) {
    return body.find_set(key) != nullptr && value != wanted;
  };
  if (differs("temperature", options.sampling.temperature, 1.0)) {
    return Status::invalid("temperature: invalid temperature: only 1 is allowed for this model");
  }
  const std::pair<std::string_view, std::pair<double, double>> fixed[] = {
      {"top_p", {options.sampling.top_p, 0.95}},
      {"presence_penalty", {options.sampling.presence_penalty, 0.0}},
      {"frequency_penalty", {options.sampling.frequency_penalty, 0.0}},
      {"n", {static_cast<double>(options.num_candidates), 1.0}}};
  for (const auto& [key, values] : fixed) {
    if (differs(key, values.first, values.second)) {
      return bad_field(key, cat("only ", values.second, " for this model"), body.find(key));
    }
  }
  return Status::ok();
}

EngineRequest engine_request(const GenerationOptions& options, const ApiContext& context, std::vector<TokenId> prompt) {
  EngineRequest request;
  const int64_t room = std::max<int64_t>(1, context.context_limit() - static_cast<int64_t>(prompt.size()));
  request.prompt = std::move(prompt);
  request.sampling = options.sampling;
  request.sampling.num_logprobs = options.logprobs.value_or(0);
  request.logprobs = options.logprobs;
  request.num_candidates = options.num_candidates;
  request.max_tokens = std::min(options.max_tokens.value_or(room), room);
  request.min_tokens = std::min(options.min_tokens, request.max_tokens);
  request.stop_tokens = options.stop_token_ids;
  if (!options.ignore_eos) {
    const std::vector<TokenId>& ends = context.options.stop_tokens;
    request.stop_tokens.insert(request.stop_tokens.end(), ends.begin(), ends.end());
  }
  request.priority = options.priority;
  request.scope.salt = options.cache_salt;
  return request;
}

}  // namespace tandem

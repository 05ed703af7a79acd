#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "base/cat.h"
#include "sample/sampler.h"

namespace tandem {
namespace {

class Problems {
 public:
  void add(std::string problem) {
    if (!text_.empty()) text_.push_back('\n');
    text_ += problem;
  }
  // A NaN fails every comparison, so it is reported like any other value out of range.
  void require_in(std::string_view field, double value, double low, double high) {
    if (!(value >= low && value <= high)) {
      add(cat(field, ": expected a number in [", low, ", ", high, "], found ", value));
    }
  }
  Status status() const { return text_.empty() ? Status::ok() : Status::invalid(text_); }

 private:
  std::string text_;
};

void check_logit_bias(std::span<const LogitBias> biases, int64_t vocab_size, Problems& problems) {
  std::vector<int32_t> tokens;
  tokens.reserve(biases.size());
  for (const LogitBias& entry : biases) {
    if (entry.token.value < 0 || entry.token.value >= vocab_size) {
      problems.add(cat("logit_bias: expected a token id in [0, ", vocab_size, "), found ", entry.token.value));
    }
    if (std::isnan(entry.bias) || entry.bias == INFINITY) {
      problems.add(
          cat("logit_bias of token ", entry.token.value, ": expected a finite number or -inf, found ", entry.bias));
    }
    tokens.push_back(entry.token.value);
  }
  std::sort(tokens.begin(), tokens.end());
  const auto twice = std::adjacent_find(tokens.begin(), tokens.end());
  if (twice != tokens.end()) problems.add(cat("logit_bias: expected each token once, found ", *twice, " twice"));
}

}  // namespace

Status SamplingParams::validate(int64_t vocab_size) const {
  Problems problems;
  problems.require_in("temperature", temperature, 0.0, 2.0);
  if (top_k < -1) problems.add(cat("top_k: expected -1 or 0 (off) or at least 1, found ", top_k));
  problems.require_in("top_p", top_p, 0.0, 1.0);
  problems.require_in("min_p", min_p, 0.0, 1.0);
  if (!(repetition_penalty > 0.0) || !std::isfinite(repetition_penalty)) {
    problems.add(cat("repetition_penalty: expected a finite number above 0, found ", repetition_penalty));
  }
  problems.require_in("presence_penalty", presence_penalty, -2.0, 2.0);
  problems.require_in("frequency_penalty", frequency_penalty, -2.0, 2.0);
  check_logit_bias(logit_bias, vocab_size, problems);
  if (num_logprobs < 0 || num_logprobs > kMaxLogprobs) {
    problems.add(cat("num_logprobs: expected an integer in [0, ", kMaxLogprobs, "], found ", num_logprobs));
  }
  if (vocab_size < 1 || vocab_size > INT32_MAX) {
    problems.add(cat("vocab_size: expected an integer in [1, ", INT32_MAX, "], found ", vocab_size));
  }
  return problems.status();
}

}  // namespace tandem

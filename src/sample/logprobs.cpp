#include "sample/logprobs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/cat.h"

namespace tandem {
namespace {

constexpr uint32_t kExponentMask = 0x7f800000u;  // all ones: NaN or infinity

// log Σ exp(l), for finite logits.
double log_sum_exp(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  return max + std::log(sum);
}

Status check_logits(std::span<const float> logits) {
  if (logits.empty()) return Status::invalid("logits: expected at least one, found none");
  return check_finite(logits);
}

Status check_token(std::span<const float> logits, TokenId token) {
  if (token.value >= 0 && static_cast<size_t>(token.value) < logits.size()) return Status::ok();
  return Status::invalid(cat("token ", token.value, ": expected an id in [0, ", logits.size(), ")"));
}

Status check_count(int64_t count) {
  if (count >= 0) return Status::ok();
  return Status::invalid(cat("top_logprobs: expected a count of at least 0, found ", count));
}

float logprob_of(float logit, double log_sum) { return static_cast<float>(static_cast<double>(logit) - log_sum); }

void best_logprobs(std::span<const float> logits, int64_t count, double log_sum, std::vector<TokenLogprob>& out) {
  out.clear();
  if (count == 0) return;
  out.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) out[i] = {TokenId(static_cast<int32_t>(i)), logits[i]};
  const auto best = out.begin() + std::min(count, static_cast<int64_t>(out.size()));
  std::partial_sort(out.begin(), best, out.end(), [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
  });
  out.erase(best, out.end());
  for (TokenLogprob& entry : out) entry.logprob = logprob_of(entry.logprob, log_sum);
}

}  // namespace

Status check_finite(std::span<const float> logits) {
  uint32_t bad = 0;  // no early exit: the loop vectorises
  for (const float logit : logits) bad |= (std::bit_cast<uint32_t>(logit) & kExponentMask) == kExponentMask ? 1u : 0u;
  if (bad == 0) return Status::ok();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      return Status::non_finite(cat("logits[", i, "]: expected a finite number, found ", logits[i]));
    }
  }
  return Status::ok();
}

Status log_softmax(std::span<const float> logits, std::span<float> out) {
  TANDEM_RETURN_IF_ERROR(check_logits(logits));
  if (out.size() != logits.size()) {
    return Status::invalid(cat("log_softmax: expected room for ", logits.size(), " values, found ", out.size()));
  }
  const double log_sum = log_sum_exp(logits);
  for (size_t i = 0; i < logits.size(); ++i) out[i] = static_cast<float>(static_cast<double>(logits[i]) - log_sum);
  return Status::ok();
}

Result<float> token_logprob(std::span<const float> logits, TokenId token) {
  TANDEM_RETURN_IF_ERROR(check_logits(logits));
  TANDEM_RETURN_IF_ERROR(check_token(logits, token));
  return logprob_of(logits[static_cast<size_t>(token.value)], log_sum_exp(logits));
}

Result<float> token_logprob(std::span<const float> logits, TokenId token, int64_t count,
                            std::vector<TokenLogprob>& top) {
  TANDEM_RETURN_IF_ERROR(check_logits(logits));
  TANDEM_RETURN_IF_ERROR(check_token(logits, token));
  TANDEM_RETURN_IF_ERROR(check_count(count));
  const double log_sum = log_sum_exp(logits);
  best_logprobs(logits, count, log_sum, top);
  return logprob_of(logits[static_cast<size_t>(token.value)], log_sum);
}

Status top_logprobs(std::span<const float> logits, int64_t count, std::vector<TokenLogprob>& out) {
  TANDEM_RETURN_IF_ERROR(check_logits(logits));
  TANDEM_RETURN_IF_ERROR(check_count(count));
  best_logprobs(logits, count, log_sum_exp(logits), out);
  return Status::ok();
}

}  // namespace tandem

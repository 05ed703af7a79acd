// tests/sample/sampler_oracle.h: the sampler's definition in plain fp64 with a full sort; what the fast one is judged
// by.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "sample/sampler.h"

namespace tandem::test {

// Probability of every token after all processors; one-hot when greedy.
inline std::vector<double> oracle_probabilities(const SamplingParams& params, std::span<const float> logits,
                                                std::span<const TokenId> prompt, std::span<const TokenId> generated) {
  const size_t vocab = logits.size();
  std::vector<double> l(logits.begin(), logits.end());
  for (const LogitBias& entry : params.logit_bias) l[static_cast<size_t>(entry.token.value)] += entry.bias;
  for (size_t token = 0; token < vocab; ++token) {
    const auto same = [&](TokenId t) { return static_cast<size_t>(t.value) == token; };
    const auto count = static_cast<double>(std::count_if(generated.begin(), generated.end(), same));
    const bool seen = count > 0 || std::any_of(prompt.begin(), prompt.end(), same);
    if (seen) l[token] = l[token] > 0 ? l[token] / params.repetition_penalty : l[token] * params.repetition_penalty;
    if (count > 0) l[token] -= params.frequency_penalty * count + params.presence_penalty;
  }
  std::vector<size_t> order(vocab);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return l[a] > l[b]; });
  std::vector<double> p(vocab, 0.0);
  if (params.is_greedy()) {
    p[order[0]] = 1.0;
    return p;
  }
  size_t kept = vocab;
  if (params.top_k > 0) kept = std::min(kept, static_cast<size_t>(params.top_k));
  const auto weight = [&](size_t rank) { return std::exp((l[order[rank]] - l[order[0]]) / params.temperature); };
  double total = 0.0;
  for (size_t rank = 0; rank < kept; ++rank) total += weight(rank);
  double sum = 0.0;
  for (size_t rank = 0; rank < kept && params.top_p < 1.0; ++rank) {
    sum += weight(rank);
    if (sum >= params.top_p * total) kept = rank + 1;
  }
  total = 0.0;
  for (size_t rank = 0; rank < kept; ++rank) {
    if (weight(rank) < params.min_p) continue;
    p[order[rank]] = weight(rank);
    total += weight(rank);
  }
  for (double& value : p) value /= total;
  return p;
}

}  // namespace tandem::test

// sample/categorical.h: the arithmetic of a draw: logits to weights, the kept set, the choice.
//
//   Only IEEE additions, multiplications and comparisons in a fixed order, no library exp: results are bitwise the same
//   on every platform. Cost for V tokens: a few passes over V that vectorise, and a selection among the tokens near the
//   cut; no sort.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "sample/sampler.h"

namespace tandem {

// exp(−distance) for distance ≥ 0, relative error below 2e-7; exactly 1 at 0, and 0 from kMaxDistance on.
inline constexpr float kMaxDistance = 87.f;  // exp(−87) is about the smallest normal f32
float decay_weight(float distance);

// The largest logit's index, ties to the lowest; nullopt when all are −infinity. No NaN, no +infinity.
std::optional<int32_t> arg_max(std::span<const float> logits);

// The same in one pass with the proof that all are finite; nullopt when one is NaN or infinite, and when there is none.
std::optional<int32_t> finite_arg_max(std::span<const float> logits);

// How far a logit lies below the best one, in nats after temperature.
struct Distance {
  float max_logit = 0.f;
  float inverse_temperature = 1.f;
  float operator()(float logit) const { return (max_logit - logit) * inverse_temperature; }
};

// scratch.weights[i] = exp(−distance(scratch.logits[i])), and 0 from kMaxDistance on.
void compute_weights(SamplerScratch& scratch, Distance distance);

// Zeroes the weights that top_k, top_p and min_p drop, in that order. top_k ≤ 0, top_p ≥ 1 and min_p = 0 are off.
void keep_most_probable(SamplerScratch& scratch, Distance distance, int64_t top_k, double top_p, double min_p);

// The first token whose cumulative weight, in id order, exceeds u · total. u in [0, 1); some weight is positive.
int32_t draw(SamplerScratch& scratch, double u);

}  // namespace tandem

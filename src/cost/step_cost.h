// cost/step_cost.h: bytes moved and operations done by a step of the model (systems.md §7, §8.2–8.5). The one owner of
// this arithmetic: `tandem plan` predicts with it and `tandem bench` divides by it.
//
//   bytes   weights once a step (of the experts, the distinct ones that are expected), states read and written, latents
//           of the tokens before the step read. Activations stay in caches and are not counted.
//   rows    behind the caches of the last layer only rows whose logits are wanted are computed, and the head for them:
//           of a prompt the last one, and in its earlier steps none.
//   FLOPs   2 a parameter met; 7·D² a head of KDA; MLA by the form that computes it: absorbed in decode, expanded in
//           prefill, where keys and values of earlier chunks are rebuilt in every chunk.
//   kReference is the textbook path: expanded keys and values of every head are stored and read, nothing is absorbed.
//   Threading: pure functions.
#pragma once

#include <cstdint>

#include "cache/cache_layout.h"
#include "config/model_config.h"
#include "cost/weight_sizes.h"

namespace tandem {

enum class AttentionPath { kFast, kReference };

struct ModelCost {
  ModelConfig config;
  WeightSizes weights;
  CacheLayout cache;
  AttentionPath path = AttentionPath::kFast;
};

// Of a step, or of several added up.
struct StepCost {
  double trunk_bytes = 0;
  double head_bytes = 0;
  double expert_bytes = 0;
  double state_bytes = 0;   // KDA states and convolution history, read and written
  double latent_bytes = 0;  // MLA: read
  double trunk_flops = 0;
  double head_flops = 0;
  double expert_flops = 0;
  double kda_flops = 0;
  double mla_flops = 0;

  double weight_bytes() const { return trunk_bytes + head_bytes + expert_bytes; }
  double bytes() const { return weight_bytes() + (state_bytes + latent_bytes); }
  double matrix_flops() const { return trunk_flops + head_flops + expert_flops; }
  double attention_flops() const { return kda_flops + mla_flops; }
  double flops() const { return matrix_flops() + attention_flops(); }
  StepCost& operator+=(const StepCost& other);
};

// Of one layer, in a step of `rows` tokens, as expected: a token misses a given expert with probability 1 − k/E, and
// tokens are taken as independent (an upper estimate: neighbours share experts). E_d of systems.md §8.2.
double distinct_experts(double experts, double experts_per_token, double rows);

// One step of one token for each of `sequences`, each with `depth` tokens in its cache.
StepCost decode_cost(const ModelCost& model, double depth, double sequences);

// The rows of a prompt whose logits are wanted.
enum class PromptLogits { kNone, kLast, kAll };

// All steps of one prompt of `tokens` tokens behind `past` cached ones, in steps of `chunk`.
StepCost prefill_cost(const ModelCost& model, int64_t past, int64_t tokens, int64_t chunk,
                      PromptLogits logits = PromptLogits::kLast);

// Cache bytes of a token and of a sequence of any length, by the path.
double cache_bytes_per_token(const ModelCost& model);
double state_bytes_per_sequence(const ModelCost& model);

}  // namespace tandem

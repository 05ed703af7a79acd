// stream/expert_policy.h: which routed experts stay in memory when not all of them fit.
//
//   The store tells the policy what the router chose and which experts have memory; the policy names the one that
//   leaves when another one needs its place. "Not kept" needs no word of its own: an expert that was read for one step
//   may be named as soon as that step has used it.
//   Threading: engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/function_ref.h"

namespace tandem {

struct ExpertKey {
  int32_t layer = 0;
  int32_t expert = 0;
  friend bool operator==(const ExpertKey&, const ExpertKey&) = default;
};

class ExpertPolicy {
 public:
  virtual ~ExpertPolicy() = default;
  // The experts that a step needs of a layer, ascending and distinct, before any room is made for them. Layers come in
  // ascending order within a step.
  virtual void on_step(int64_t layer, std::span<const int32_t> needed) = 0;
  virtual void on_insert(ExpertKey key) = 0;  // it has memory: read, or about to be
  virtual void on_remove(ExpertKey key) = 0;
  // The expert whose memory `incoming` takes: one with memory that is not pinned, or none when there is none.
  // Speculative (not needed yet, only predicted): none also when every other one is worth more than this guess.
  virtual std::optional<ExpertKey> victim(ExpertKey incoming, bool speculative,
                                          FunctionRef<bool(ExpertKey)> is_pinned) = 0;
};

// The least recently needed leaves. num_layers counts all layers of the model, with experts or without.
std::unique_ptr<ExpertPolicy> make_lru_policy(int64_t num_layers, int64_t num_experts);

// Least frequently recently used, the yardstick between recency and frequency: a privileged part of the places, half,
// goes by recency; what falls out of it competes by how often it was needed since it was read, ties by recency. The two
// parts are those of Bilal and Kang's LFRU (2014).
std::unique_ptr<ExpertPolicy> make_lfru_policy(int64_t num_layers, int64_t num_experts);

// The one with the smallest estimate of use leaves (stream/reuse_model.h): learned while running, from nothing; a
// prefill does not flush it. Costs O(experts of a layer) a visit and O(layers + experts of a layer) a victim.
std::unique_ptr<ExpertPolicy> make_reuse_policy(int64_t num_layers, int64_t num_experts);

}  // namespace tandem

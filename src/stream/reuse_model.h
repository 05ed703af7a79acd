// stream/reuse_model.h: how soon each routed expert will be needed again, learned while the router routes.
//
//   V = E[discount^(visits - 1)], visits of the layer until the expert is needed: near 1 for "at the next token".
//   logit V = w · x, one w for all experts of all layers, learned by temporal differences (Sutton 1988): at each visit
//   the last estimate moves towards 1 if the expert is needed, else towards discount * (its new estimate).
//   x: needed at each of the last four visits, decayed rates at four half-lives, time since the last need, and what
//   RoutingRecall says. A visit that needs the share f of a layer's experts (prefill, batches) says little about each:
//   its needs, its passing of time and its lesson all count 1 - f, so a scan leaves the estimates as they were.
//   The arithmetic is +, * and / of f32 in a fixed order: the same numbers on every machine. Threading: one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stream/routing_recall.h"

namespace tandem {

class ReuseModel {
 public:
  static constexpr float kDiscount = 0.3F;
  static constexpr float kLogDiscount = -1.2F;

  ReuseModel(int64_t num_layers, int64_t num_experts);
  // The experts that a visit of the layer needs, ascending and distinct.
  void observe(int64_t layer, std::span<const int32_t> needed);
  // logit V of a layer's experts; comparable between layers.
  std::span<const float> estimates(int64_t layer) const { return row(estimates_, layer); }

 private:
  static constexpr int kRecent = 4, kRates = 4;
  static constexpr int kFeatures = 1 + kRecent + kRates + 2;

  std::span<float> row(std::vector<float>& of, int64_t index) {
    return {of.data() + index * num_experts_, static_cast<size_t>(num_experts_)};
  }
  std::span<const float> row(const std::vector<float>& of, int64_t index) const {
    return {of.data() + index * num_experts_, static_cast<size_t>(num_experts_)};
  }
  std::span<float> feature(int64_t layer, int index) { return row(features_, layer * kFeatures + index); }
  void update_features(int64_t layer, float information, float usual_rate);
  void weigh(int64_t layer, std::span<float> estimates);
  void learn(float information, float num_needed);

  int64_t num_experts_;
  RoutingRecall recall_;
  float weights_[kFeatures];
  float num_lessons_ = 0;
  std::vector<float> features_;          // [layers, kFeatures, experts]: as of the layer's last visit
  std::vector<float> counts_;            // [layers, kRates, experts]: decayed needs
  std::vector<float> age_;               // [layers, experts]: time since the last need
  std::vector<float> estimates_;         // [layers, experts]
  std::vector<float> weight_of_counts_;  // [layers, kRates]: what counts_ would be, were it needed always
  std::vector<float> needed_, next_, previous_, old_features_;  // scratch of one visit
  std::vector<bool> visited_;                                   // [layers]
};

}  // namespace tandem

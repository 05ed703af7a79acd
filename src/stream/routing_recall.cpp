#include "stream/routing_recall.h"

#include <bit>
#include <cmath>

#include "base/check.h"
#include "stream/quick_math.h"

namespace tandem {
namespace {

constexpr float kSharpness = 12.F;  // of exp2: a step equal in all layers against one equal in none, 4096 : 1
constexpr float kCarry = 0.5F;      // what similarity of the preceding step counts

}  // namespace

RoutingRecall::RoutingRecall(int64_t num_layers, int64_t num_experts)
    : num_layers_(num_layers),
      num_experts_(num_experts),
      last_layer_(num_layers),
      now_(kSteps - 1),
      num_known_(-1),
      needed_in_(static_cast<size_t>(num_layers * num_experts), Steps{}),
      inverse_root_(static_cast<size_t>(num_layers * kSteps), 0.F) {}

void RoutingRecall::begin_step() {
  // The step before this one was as similar to a step as this one's predecessor is to that step's predecessor.
  for (int64_t place = 0; place < kSteps; ++place) {
    previous_[(place + 1) % kSteps] = num_layers_seen_ == 0 ? 0.F : similarity_[place];
  }
  now_ = (now_ + 1) % kSteps;
  num_known_ = std::min(num_known_ + 1, kSteps - 1);
  similarity_.fill(0.F);
  num_layers_seen_ = 0;
}

void RoutingRecall::compare(int64_t layer, std::span<const int32_t> needed) {
  Steps* const of_layer = needed_in_.data() + layer * num_experts_;
  float* const inverse_root = inverse_root_.data() + layer * kSteps;
  const uint64_t bit = uint64_t{1} << (now_ % 64);
  for (int64_t expert = 0; expert < num_experts_; ++expert) of_layer[expert][now_ / 64] &= ~bit;
  const float own = needed.empty() ? 0.F : 1.F / std::sqrt(static_cast<float>(needed.size()));
  for (const int32_t expert : needed) {
    for (int64_t word = 0; word < kWords; ++word) {
      for (uint64_t steps = of_layer[expert][word]; steps != 0; steps &= steps - 1) {
        const int64_t place = word * 64 + std::countr_zero(steps);
        similarity_[place] += own * inverse_root[place];
      }
    }
    of_layer[expert][now_ / 64] |= bit;
  }
  inverse_root[now_] = own;
}

bool RoutingRecall::observe(int64_t layer, std::span<const int32_t> needed, std::span<float> shares) {
  TANDEM_CHECK(layer >= 0 && layer < num_layers_ && static_cast<int64_t>(shares.size()) == num_experts_,
               "a layer of this model");
  if (layer <= last_layer_) begin_step();
  last_layer_ = layer;
  ++num_layers_seen_;
  compare(layer, needed);
  if (num_known_ <= 0) return false;

  const float layers = static_cast<float>(num_layers_seen_) + kCarry * static_cast<float>(num_layers_);
  float total = 0.F;
  weight_.fill(0.F);
  for (int64_t back = 1; back <= num_known_; ++back) {
    const int64_t place = (now_ - back + kSteps) % kSteps;
    const float mean = (similarity_[place] + kCarry * previous_[place]) / layers;
    const float weight = quick_exp2(kSharpness * mean);
    weight_[(place + 1) % kSteps] = weight;
    total += weight;
  }
  const Steps* const of_layer = needed_in_.data() + layer * num_experts_;
  for (int64_t expert = 0; expert < num_experts_; ++expert) {
    float sum = 0.F;
    for (int64_t word = 0; word < kWords; ++word) {
      for (uint64_t steps = of_layer[expert][word]; steps != 0; steps &= steps - 1) {
        sum += weight_[word * 64 + std::countr_zero(steps)];
      }
    }
    shares[expert] = sum / total;
  }
  return true;
}

}  // namespace tandem

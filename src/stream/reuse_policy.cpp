// The expert that is worth least leaves. Worth is the model's logit plus the discount of the time until its layer is
// next visited, so between equals the one whose turn comes first stays. A layer's estimates change only when it is
// visited, so each layer keeps the least of its own and a victim is the least of those.
#include <limits>
#include <vector>

#include "base/check.h"
#include "stream/expert_policy.h"
#include "stream/reuse_model.h"

namespace tandem {
namespace {

constexpr float kNone = std::numeric_limits<float>::infinity();
constexpr float kWorthOfGuess = 0.F;  // logit: an expert that a look ahead names is needed at its turn, or is not

class ReusePolicy final : public ExpertPolicy {
 public:
  ReusePolicy(int64_t num_layers, int64_t num_experts)
      : num_layers_(num_layers),
        num_experts_(num_experts),
        model_(num_layers, num_experts),
        has_memory_(static_cast<size_t>(num_layers * num_experts), 0),
        least_(static_cast<size_t>(num_layers)) {}

  void on_step(int64_t layer, std::span<const int32_t> needed) override {
    model_.observe(layer, needed);
    last_layer_ = layer;
    least_[static_cast<size_t>(layer)].is_known = false;
  }

  void on_insert(ExpertKey key) override {
    TANDEM_CHECK(!has_memory(key), "an expert has memory once");
    has_memory_[index(key)] = 1;
    Least& least = least_[static_cast<size_t>(key.layer)];
    const float estimate = estimate_of(key);
    if (least.is_known && estimate < least.estimate) least = {key.expert, estimate, true};
    if (least.is_known && estimate == least.estimate && key.expert < least.expert) least.expert = key.expert;
  }

  void on_remove(ExpertKey key) override {
    TANDEM_CHECK(has_memory(key), "an expert without memory cannot lose it");
    has_memory_[index(key)] = 0;
    Least& least = least_[static_cast<size_t>(key.layer)];
    if (least.expert == key.expert) least.is_known = false;
  }

  std::optional<ExpertKey> victim(ExpertKey incoming, bool speculative,
                                  FunctionRef<bool(ExpertKey)> is_pinned) override {
    std::optional<ExpertKey> best;
    float best_worth = speculative ? kWorthOfGuess + discount(incoming.layer) : kNone;
    for (int32_t layer = 0; layer < num_layers_; ++layer) {
      const float wait = discount(layer);
      Least least = least_of(layer);
      if (least.estimate + wait >= best_worth) continue;
      if (is_pinned({layer, least.expert})) least = find_least(layer, &is_pinned);
      if (least.estimate + wait >= best_worth) continue;
      best = ExpertKey{layer, least.expert};
      best_worth = least.estimate + wait;
    }
    return best;
  }

 private:
  struct Least {
    int32_t expert = 0;
    float estimate = kNone;  // none of the layer has memory
    bool is_known = false;
  };

  size_t index(ExpertKey key) const { return static_cast<size_t>(key.layer * num_experts_ + key.expert); }
  bool has_memory(ExpertKey key) const { return has_memory_[index(key)] != 0; }
  float estimate_of(ExpertKey key) const { return model_.estimates(key.layer)[static_cast<size_t>(key.expert)]; }

  // For the visits of other layers that come first, of one token's.
  float discount(int32_t layer) const {
    const int64_t ahead = (layer - last_layer_ - 1 + 2 * num_layers_) % num_layers_ + 1;
    return ReuseModel::kLogDiscount * static_cast<float>(ahead) / static_cast<float>(num_layers_);
  }

  Least least_of(int32_t layer) {
    Least& least = least_[static_cast<size_t>(layer)];
    if (!least.is_known) least = find_least(layer, nullptr);
    return least;
  }

  Least find_least(int32_t layer, FunctionRef<bool(ExpertKey)>* is_pinned) const {
    Least least = {0, kNone, true};
    const std::span<const float> estimates = model_.estimates(layer);
    const uint8_t* const present = has_memory_.data() + layer * num_experts_;
    for (int32_t expert = 0; expert < num_experts_; ++expert) {
      if (present[expert] == 0 || estimates[static_cast<size_t>(expert)] >= least.estimate) continue;
      if (is_pinned != nullptr && (*is_pinned)({layer, expert})) continue;
      least.expert = expert;
      least.estimate = estimates[static_cast<size_t>(expert)];
    }
    return least;
  }

  int64_t num_layers_, num_experts_;
  int64_t last_layer_ = 0;
  ReuseModel model_;
  std::vector<uint8_t> has_memory_;  // [layers, experts]
  std::vector<Least> least_;         // [layers], of those with memory
};

}  // namespace

std::unique_ptr<ExpertPolicy> make_reuse_policy(int64_t num_layers, int64_t num_experts) {
  return std::make_unique<ReusePolicy>(num_layers, num_experts);
}

}  // namespace tandem

// stream/routing_recall.h: what was needed after earlier steps that looked like this one.
//
//   Text repeats itself, and routing with it: experts of a step are likely those that followed the earlier steps with
//   the most similar routing (an induction head over routing; nearest neighbours with weights exp(sharpness *
//   similarity)). Similarity of two steps: the mean over layers of |A ∩ B| / sqrt(|A| |B|), the steps before them
//   counting a part. The last kSteps steps are remembered. Threading: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem {

class RoutingRecall {
 public:
  static constexpr int64_t kSteps = 256;

  RoutingRecall(int64_t num_layers, int64_t num_experts);
  // Takes in what the layer needs and writes, for each of its experts, the share of the similar steps whose next step
  // needed it. False, and nothing written, while no earlier step is known. Layers ascend within a step.
  bool observe(int64_t layer, std::span<const int32_t> needed, std::span<float> shares);

 private:
  static constexpr int64_t kWords = kSteps / 64;
  using Steps = std::array<uint64_t, kWords>;  // a bit for each remembered step, by its place in the ring

  void begin_step();
  void compare(int64_t layer, std::span<const int32_t> needed);

  int64_t num_layers_, num_experts_;
  int64_t last_layer_ = 0;
  int64_t num_layers_seen_ = 0;                // in this step
  int64_t now_ = 0;                            // place of this step in the ring
  int64_t num_known_ = 0;                      // earlier steps remembered
  std::vector<Steps> needed_in_;               // [layers, experts]
  std::vector<float> inverse_root_;            // [layers, kSteps]: 1 / sqrt(experts that the step needed there)
  std::array<float, kSteps> similarity_ = {};  // to this step, summed over its layers so far
  std::array<float, kSteps> previous_ = {};    // the same of the step before this one
  std::array<float, kSteps> weight_ = {};      // by the place of the *following* step
};

}  // namespace tandem

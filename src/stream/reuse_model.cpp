#include "stream/reuse_model.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "stream/quick_math.h"

namespace tandem {
namespace {

constexpr std::array<float, 4> kHalfLives = {2.F, 8.F, 32.F, 128.F};  // visits
constexpr float kPrior = 1.F;          // visits at the usual rate that a new expert is taken to have behind it
constexpr float kRecallFloor = 0.02F;  // what similar steps that say "never" are not believed
constexpr float kLearningRate = 0.01F;
constexpr float kLessonsToHalf = 2000.F;  // after so many the rate is half
constexpr float kOldest = 200.F;          // visits; ages above it are alike

// Where learning starts: bias, the last four visits, rates by half-life, age, recall.
constexpr std::array<float, 11> kStart = {-3.F, 1.1F, 0.4F, 0.3F, 0.1F, 0.2F, 0.4F, 0.F, 0.4F, 0.2F, 0.5F};
constexpr float kMostWeight = 20.F;     // whatever the routing, estimates stay finite
constexpr float kNatural = 0.6931472F;  // ln 2: the weights are for natural logarithms

// Eight sums side by side, in a fixed order: vectors of them, and the same bits wherever it is built.
float dot(std::span<const float> a, std::span<const float> b) {
  constexpr size_t kLanes = 8;
  std::array<float, kLanes> sums = {};
  size_t i = 0;
  for (; i + kLanes <= a.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < a.size(); ++i) sums[0] += a[i] * b[i];
  float sum = 0.F;
  for (const float part : sums) sum += part;
  return sum;
}

}  // namespace

ReuseModel::ReuseModel(int64_t num_layers, int64_t num_experts)
    : num_experts_(num_experts),
      recall_(num_layers, num_experts),
      features_(static_cast<size_t>(num_layers * kFeatures * num_experts), 0.F),
      counts_(static_cast<size_t>(num_layers * kRates * num_experts), 0.F),
      age_(static_cast<size_t>(num_layers * num_experts), kOldest),
      estimates_(static_cast<size_t>(num_layers * num_experts), kStart[0]),
      weight_of_counts_(static_cast<size_t>(num_layers * kRates), 0.F),
      needed_(static_cast<size_t>(num_experts), 0.F),
      next_(static_cast<size_t>(num_experts), 0.F),
      previous_(static_cast<size_t>(num_experts), 0.F),
      old_features_(static_cast<size_t>(kFeatures * num_experts), 0.F),
      visited_(static_cast<size_t>(num_layers), false) {
  static_assert(kStart.size() == kFeatures && kHalfLives.size() == kRates);
  std::copy(kStart.begin(), kStart.end(), weights_);
}

void ReuseModel::observe(int64_t layer, std::span<const int32_t> needed) {
  if (needed.empty()) return;
  const float share = static_cast<float>(needed.size()) / static_cast<float>(num_experts_);
  const float information = std::max(1.F - share, 0.F);
  std::fill(needed_.begin(), needed_.end(), 0.F);
  for (const int32_t expert : needed) needed_[static_cast<size_t>(expert)] = 1.F;

  const std::span<float> now = row(estimates_, layer);
  const float* const before = features_.data() + layer * kFeatures * num_experts_;
  std::copy(before, before + kFeatures * num_experts_, old_features_.begin());
  // Again, by what other layers have taught since: errors against stale estimates would add up and diverge.
  weigh(layer, previous_);

  const bool recalls = recall_.observe(layer, needed, next_);
  const std::span<float> recalled = feature(layer, kFeatures - 1);
  for (size_t i = 0; recalls && i < recalled.size(); ++i) {
    const float logit = kNatural * quick_log2((next_[i] / share + kRecallFloor) / (1.F + kRecallFloor));
    recalled[i] += information * (logit - recalled[i]);
  }
  update_features(layer, information, share);
  weigh(layer, next_);
  if (visited_[static_cast<size_t>(layer)]) learn(information, static_cast<float>(needed.size()));
  visited_[static_cast<size_t>(layer)] = true;
  weigh(layer, now);
}

void ReuseModel::update_features(int64_t layer, float information, float usual_rate) {
  for (float& one : feature(layer, 0)) one = 1.F;
  // The last visits move on by the part of a visit that this one is.
  for (int back = kRecent; back >= 1; --back) {
    const std::span<float> to = feature(layer, back);
    const std::span<const float> from = back == 1 ? std::span<const float>(needed_) : feature(layer, back - 1);
    for (size_t i = 0; i < to.size(); ++i) to[i] += information * (from[i] - to[i]);
  }
  for (int rate = 0; rate < kRates; ++rate) {
    const float decay = quick_exp2(-information / kHalfLives[static_cast<size_t>(rate)]);
    float& total = weight_of_counts_[static_cast<size_t>(layer * kRates + rate)];
    total = total * decay + information;
    const std::span<float> counts = row(counts_, layer * kRates + rate);
    const std::span<float> out = feature(layer, 1 + kRecent + rate);
    const float scale = 1.F / ((total + kPrior) * usual_rate);
    for (size_t i = 0; i < counts.size(); ++i) {
      counts[i] = counts[i] * decay + information * needed_[i];
      out[i] = kNatural * quick_log2((counts[i] + kPrior * usual_rate) * scale);
    }
  }
  const float reset = kOldest * (1.F - information) * (1.F - information);
  const std::span<float> ages = row(age_, layer);
  const std::span<float> out = feature(layer, 1 + kRecent + kRates);
  for (size_t i = 0; i < ages.size(); ++i) {
    const float older = std::min(ages[i] + information, kOldest);
    ages[i] = needed_[i] != 0.F ? std::min(older, reset) : older;
    out[i] = kNatural * quick_log2(1.F + ages[i]);
  }
}

void ReuseModel::weigh(int64_t layer, std::span<float> estimates) {
  std::fill(estimates.begin(), estimates.end(), 0.F);
  for (int index = 0; index < kFeatures; ++index) {
    const std::span<const float> values = feature(layer, index);
    for (size_t i = 0; i < estimates.size(); ++i) estimates[i] += weights_[index] * values[i];
  }
}

void ReuseModel::learn(float information, float num_needed) {
  const float rate = information * kLearningRate / ((1.F + num_lessons_ / kLessonsToHalf) * num_needed);
  num_lessons_ += information;
  for (size_t i = 0; i < next_.size(); ++i) {
    const float target = needed_[i] != 0.F ? 1.F : kDiscount * quick_logistic(next_[i]);
    next_[i] = target - quick_logistic(previous_[i]);
  }
  for (int index = 0; index < kFeatures; ++index) {
    const std::span<const float> values = row(old_features_, index);
    weights_[index] = std::clamp(weights_[index] + rate * dot(next_, values), -kMostWeight, kMostWeight);
  }
}

}  // namespace tandem

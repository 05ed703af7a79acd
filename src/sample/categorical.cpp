#include "sample/categorical.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace tandem {
namespace {

// Histogram over ln(1/weight): fine enough that few tokens share the bucket of a cut.
constexpr float kBucketsPerNat = 16.f;
constexpr size_t kNumBuckets = static_cast<size_t>(kMaxDistance * kBucketsPerNat) + 1;

constexpr size_t kDrawBlock = 512;
constexpr size_t kLanes = 8;

// Ascending keys are descending logits, ties by ascending id; every key is different.
uint64_t selection_key(float logit, size_t id) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.f);  // −0 becomes +0
  const uint32_t ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return (uint64_t{~ascending} << 32) | static_cast<uint32_t>(id);
}

size_t id_of(uint64_t key) { return static_cast<size_t>(key & 0xffffffffu); }

// The first key, in ascending order, at which the running sum of measure(key) reaches `need`; the last key when none
// does. Quickselect: expected linear time. Reorders the keys. The order of additions depends on the keys alone.
template <class Measure>
uint64_t cut_key(std::span<uint64_t> keys, double need, Measure measure) {
  double before = 0.0;
  while (keys.size() > 1) {
    const uint64_t a = keys.front(), b = keys[keys.size() / 2], c = keys.back();
    const uint64_t pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
    size_t below = 0;
    double below_sum = 0.0;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] < pivot) {
        below_sum += measure(keys[i]);
        std::swap(keys[i], keys[below++]);
      }
    }
    if (below > 0 && before + below_sum >= need) {
      keys = keys.first(below);
      continue;
    }
    before += below_sum + measure(pivot);
    if (before >= need || below + 1 == keys.size()) return pivot;
    std::swap(*std::find(keys.begin() + static_cast<std::ptrdiff_t>(below), keys.end(), pivot), keys[below]);
    keys = keys.subspan(below + 1);
  }
  return keys.front();
}

// How many tokens, and how much weight, lie in each band of distance.
struct Histogram {
  std::array<double, kNumBuckets> count{};
  std::array<double, kNumBuckets> weight{};

  static size_t bucket_of(float distance) { return static_cast<size_t>(distance * kBucketsPerNat); }
  // The first bucket at which the running sum of `values` reaches `need`; the last one when none does.
  static size_t cut_bucket(const std::array<double, kNumBuckets>& values, double need) {
    double sum = 0.0;
    for (size_t bucket = 0; bucket < kNumBuckets; ++bucket) {
      sum += values[bucket];
      if (sum >= need) return bucket;
    }
    return kNumBuckets - 1;
  }
};

Histogram make_histogram(const SamplerScratch& scratch, Distance distance) {
  Histogram histogram;
  for (size_t i = 0; i < scratch.weights.size(); ++i) {
    if (scratch.weights[i] == 0.f) continue;
    const size_t bucket = Histogram::bucket_of(distance(scratch.logits[i]));
    histogram.count[bucket] += 1.0;
    histogram.weight[bucket] += static_cast<double>(scratch.weights[i]);
  }
  return histogram;
}

void gather_keys(SamplerScratch& scratch, Distance distance, size_t last_bucket) {
  scratch.keys.clear();
  for (size_t i = 0; i < scratch.weights.size(); ++i) {
    if (scratch.weights[i] == 0.f || Histogram::bucket_of(distance(scratch.logits[i])) > last_bucket) continue;
    scratch.keys.push_back(selection_key(scratch.logits[i], i));
  }
}

}  // namespace

float decay_weight(float distance) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693145752f;       // 15 bits: n · kLn2High is exact
  constexpr float kLn2Low = 1.42860677e-06f;     // ln 2 − kLn2High
  constexpr float kRoundToInteger = 12582912.f;  // 1.5 · 2^23: adding it leaves an integer in the low mantissa bits
  // Selection by bit masks, not branches: the loop over the vocabulary vectorises.
  const uint32_t keep = distance < kMaxDistance ? ~0u : 0u;
  const float x = -std::bit_cast<float>(std::bit_cast<uint32_t>(distance) & keep);
  const float shifted = x * kLog2E + kRoundToInteger;
  const float n = shifted - kRoundToInteger;
  const float r = (x - n * kLn2High) - n * kLn2Low;  // |r| ≤ ln 2 / 2
  float p = 1.f / 5040.f;
  p = p * r + 1.f / 720.f;
  p = p * r + 1.f / 120.f;
  p = p * r + 1.f / 24.f;
  p = p * r + 1.f / 6.f;
  p = p * r + 0.5f;
  p = p * r + 1.f;
  p = p * r + 1.f;
  const uint32_t exponent = (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRoundToInteger)) << 23;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(p) + exponent) & keep);
}

std::optional<int32_t> arg_max(std::span<const float> logits) {
  std::array<float, kLanes> lane;
  lane.fill(-INFINITY);
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lane[j] = logits[i + j] > lane[j] ? logits[i + j] : lane[j];
  }
  for (; i < logits.size(); ++i) lane[0] = logits[i] > lane[0] ? logits[i] : lane[0];
  const float best = *std::max_element(lane.begin(), lane.end());
  if (best == -INFINITY) return std::nullopt;
  return static_cast<int32_t>(std::find(logits.begin(), logits.end(), best) - logits.begin());
}

void compute_weights(SamplerScratch& scratch, Distance distance) {
  const size_t count = scratch.logits.size();
  scratch.weights.resize(count);
  const float* logits = scratch.logits.data();
  float* weights = scratch.weights.data();
  for (size_t i = 0; i < count; ++i) weights[i] = decay_weight(distance(logits[i]));
}

void keep_most_probable(SamplerScratch& scratch, Distance distance, int64_t top_k, double top_p, double min_p) {
  std::vector<float>& weights = scratch.weights;
  const bool by_count = top_k > 0 && static_cast<size_t>(top_k) < weights.size();
  const bool by_mass = top_p < 1.0;
  if (by_count || by_mass) {
    const auto weight_of = [&](uint64_t key) { return static_cast<double>(weights[id_of(key)]); };
    const Histogram histogram = make_histogram(scratch, distance);
    double total = 0.0;
    for (const double weight : histogram.weight) total += weight;
    gather_keys(scratch, distance,
                by_count ? Histogram::cut_bucket(histogram.count, static_cast<double>(top_k))
                         : Histogram::cut_bucket(histogram.weight, top_p * total));
    uint64_t cut = UINT64_MAX;
    if (by_count) {
      cut = cut_key(scratch.keys, static_cast<double>(top_k), [](uint64_t) { return 1.0; });
      std::erase_if(scratch.keys, [&](uint64_t key) { return key > cut; });
      total = 0.0;
      for (const uint64_t key : scratch.keys) total += weight_of(key);
    }
    if (by_mass) cut = cut_key(scratch.keys, top_p * total, weight_of);
    for (size_t i = 0; i < weights.size(); ++i) {
      if (selection_key(scratch.logits[i], i) > cut) weights[i] = 0.f;
    }
  }
  if (min_p > 0.0) {
    for (float& weight : weights) weight = static_cast<double>(weight) >= min_p ? weight : 0.f;
  }
}

int32_t draw(SamplerScratch& scratch, double u) {
  const std::vector<float>& weights = scratch.weights;
  scratch.block_sums.clear();
  double total = 0.0;
  for (size_t begin = 0; begin < weights.size(); begin += kDrawBlock) {
    const size_t end = std::min(begin + kDrawBlock, weights.size());
    std::array<double, kLanes> lane{};  // one chain of additions a lane: a fixed order that vectorises
    size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (size_t j = 0; j < kLanes; ++j) lane[j] += static_cast<double>(weights[i + j]);
    }
    for (size_t j = 0; i < end; ++i, ++j) lane[j] += static_cast<double>(weights[i]);
    double sum = 0.0;
    for (const double part : lane) sum += part;
    scratch.block_sums.push_back(sum);
    total += sum;
  }
  double left = u * total;
  size_t last_positive = weights.size();  // the answer when rounding leaves `left` just above what remains
  for (size_t block = 0; block < scratch.block_sums.size(); ++block) {
    const bool last_block = block + 1 == scratch.block_sums.size();
    if (left >= scratch.block_sums[block] && !last_block) {
      left -= scratch.block_sums[block];
      continue;
    }
    const size_t end = std::min((block + 1) * kDrawBlock, weights.size());
    for (size_t i = block * kDrawBlock; i < end; ++i) {
      if (weights[i] == 0.f) continue;
      last_positive = i;
      left -= static_cast<double>(weights[i]);
      if (left < 0.0) return static_cast<int32_t>(i);
    }
    if (last_positive != weights.size()) return static_cast<int32_t>(last_positive);
  }
  // Rounding walked past every positive weight: the last of them.
  for (size_t i = weights.size(); i > 0; --i) {
    if (weights[i - 1] > 0.f) return static_cast<int32_t>(i - 1);
  }
  TANDEM_CHECK(false, "a draw needs a positive weight");
  return 0;
}

}  // namespace tandem

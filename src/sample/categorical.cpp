#include "sample/categorical.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace tandem {
namespace {

// Histogram over ln(1/weight): fine enough that few tokens share the bucket of a cut. Weights of 0 have the last bucket
// to themselves.
constexpr float kBucketsPerNat = 16.f;
constexpr size_t kNumBuckets = static_cast<size_t>(kMaxDistance * kBucketsPerNat) + 1;

constexpr size_t kDrawBlock = 512;
constexpr size_t kLanes = 8;

constexpr int32_t kExponentMask = 0x7f800000u;  // all ones: NaN or infinity

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

// Sums of a value by bucket. Neighbours often share a bucket: in parts that take turns, no sum waits for the one
// before.
class Histogram {
 public:
  // value(i) of token i is added to bucket buckets[i].
  template <class Value>
  Histogram(std::span<const uint16_t> buckets, Value value) {
    size_t i = 0;
    for (; i + kParts <= buckets.size(); i += kParts) {
      for (size_t part = 0; part < kParts; ++part) sums_[buckets[i + part]][part] += value(i + part);
    }
    for (; i < buckets.size(); ++i) sums_[buckets[i]][0] += value(i);
  }
  double sum(size_t bucket) const {
    const std::array<double, kParts>& parts = sums_[bucket];
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
  }
  double total() const {
    double total = 0.0;
    for (size_t bucket = 0; bucket + 1 < kNumBuckets; ++bucket) total += sum(bucket);
    return total;
  }

  struct Cut {
    size_t bucket = kNumBuckets - 1;
    double before = 0.0;  // in the buckets in front of it
  };
  // The first bucket at which the running sum reaches `need`; the last one when none does.
  Cut cut(double need) const {
    Cut cut{.bucket = 0, .before = 0.0};
    while (cut.bucket + 1 < kNumBuckets && cut.before + sum(cut.bucket) < need) cut.before += sum(cut.bucket++);
    return cut;
  }

 private:
  static constexpr size_t kParts = 4;
  std::array<std::array<double, kParts>, kNumBuckets> sums_{};
};

void fill_buckets(SamplerScratch& scratch, Distance distance) {
  scratch.buckets.resize(scratch.logits.size());
  for (size_t i = 0; i < scratch.logits.size(); ++i) {
    const float far = distance(scratch.logits[i]);
    const float near = far < kMaxDistance ? far : kMaxDistance;
    scratch.buckets[i] = static_cast<uint16_t>(static_cast<int32_t>(near * kBucketsPerNat));
  }
}

// Keys of the tokens in the buckets [first, last], weights of 0 left out. No branch: which tokens it are follows no
// pattern that a processor could predict.
std::span<uint64_t> gather_keys(SamplerScratch& scratch, size_t first, size_t last) {
  scratch.keys.resize(scratch.logits.size());
  last = std::min(last, kNumBuckets - 2);
  size_t count = 0;
  for (size_t i = 0; i < scratch.buckets.size(); ++i) {
    scratch.keys[count] = selection_key(scratch.logits[i], i);
    count += size_t{scratch.buckets[i] >= first} & size_t{scratch.buckets[i] <= last};
  }
  return std::span(scratch.keys).first(count);
}

// Zeroes the weights of the tokens behind that of `cut`, in the keys' order.
void drop_behind(SamplerScratch& scratch, uint64_t cut) {
  const size_t last = id_of(cut);
  const float logit = scratch.logits[last];
  const float* logits = scratch.logits.data();
  float* weights = scratch.weights.data();
  for (size_t i = 0; i <= last; ++i) weights[i] = logits[i] >= logit ? weights[i] : 0.f;
  for (size_t i = last + 1; i < scratch.weights.size(); ++i) weights[i] = logits[i] > logit ? weights[i] : 0.f;
}

// The fewest best tokens whose weight reaches the share `top_p` of all: the key of the last of them; none when rounding
// leaves the share out of reach.
std::optional<uint64_t> mass_cut(SamplerScratch& scratch, double top_p) {
  const std::vector<float>& weights = scratch.weights;
  const Histogram mass(scratch.buckets, [&](size_t i) { return static_cast<double>(weights[i]); });
  const double need = top_p * mass.total();
  const Histogram::Cut cut = mass.cut(need);
  const std::span<uint64_t> keys = gather_keys(scratch, cut.bucket, cut.bucket);
  if (keys.empty()) return std::nullopt;
  return cut_key(keys, need - cut.before, [&](uint64_t key) { return static_cast<double>(weights[id_of(key)]); });
}

// The top_k best tokens, and of those the fewest best whose weight reaches the share `top_p` of theirs.
uint64_t count_cut(SamplerScratch& scratch, int64_t top_k, double top_p) {
  const Histogram count(scratch.buckets, [](size_t) { return 1.0; });
  std::span<uint64_t> keys = gather_keys(scratch, 0, count.cut(static_cast<double>(top_k)).bucket);
  const uint64_t cut = cut_key(keys, static_cast<double>(top_k), [](uint64_t) { return 1.0; });
  if (top_p >= 1.0) return cut;
  const auto end = std::remove_if(keys.begin(), keys.end(), [&](uint64_t key) { return key > cut; });
  keys = keys.first(static_cast<size_t>(end - keys.begin()));
  const auto weight_of = [&](uint64_t key) { return static_cast<double>(scratch.weights[id_of(key)]); };
  double total = 0.0;
  for (const uint64_t key : keys) total += weight_of(key);
  return cut_key(keys, top_p * total, weight_of);
}

// Four lanes, which every processor we run on has: compilers do not find them in a loop of comparisons and selections.
using Floats = float __attribute__((vector_size(16)));
using Words = int32_t __attribute__((vector_size(16)));
constexpr size_t kWidth = 4;
constexpr size_t kScanVectors = 4;  // chains that do not wait for each other
constexpr size_t kScanBlock = 1024;

struct Scan {
  float best = -INFINITY;
  size_t block = 0;  // where the best one is met first
  bool is_finite = true;
};

// Of one block, whose length is a multiple of all lanes.
void scan_block(std::span<const float> logits, Floats& best, Words& bad) {
  Floats high[kScanVectors];
  Words found[kScanVectors];
  for (size_t v = 0; v < kScanVectors; ++v) {
    high[v] = best;
    found[v] = bad;
  }
  for (size_t i = 0; i < logits.size(); i += kScanVectors * kWidth) {
    for (size_t v = 0; v < kScanVectors; ++v) {
      Floats x;
      std::memcpy(&x, logits.data() + i + v * kWidth, sizeof x);
      high[v] = x > high[v] ? x : high[v];
      found[v] |= (std::bit_cast<Words>(x) & kExponentMask) == kExponentMask;
    }
  }
  for (size_t v = 0; v < kScanVectors; ++v) {
    best = high[v] > best ? high[v] : best;
    bad |= found[v];
  }
}

Scan scan(std::span<const float> logits) {
  Scan result;
  Words bad = {};
  for (size_t begin = 0; begin < logits.size(); begin += kScanBlock) {
    const std::span<const float> block = logits.subspan(begin, std::min(kScanBlock, logits.size() - begin));
    Floats high = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    const size_t whole = block.size() / (kScanVectors * kWidth) * (kScanVectors * kWidth);
    scan_block(block.first(whole), high, bad);
    float best = std::max(std::max(high[0], high[1]), std::max(high[2], high[3]));
    for (const float logit : block.subspan(whole)) {
      best = logit > best ? logit : best;
      bad[0] |= (std::bit_cast<int32_t>(logit) & kExponentMask) == kExponentMask ? -1 : 0;
    }
    if (best > result.best) {
      result.best = best;
      result.block = begin;
    }
  }
  result.is_finite = (bad[0] | bad[1] | bad[2] | bad[3]) == 0;
  return result;
}

int32_t index_of_best(std::span<const float> logits, const Scan& found) {
  const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(found.block);
  return static_cast<int32_t>(std::find(begin, logits.end(), found.best) - logits.begin());
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
  const Scan found = scan(logits);
  if (found.best == -INFINITY) return std::nullopt;
  return index_of_best(logits, found);
}

std::optional<int32_t> finite_arg_max(std::span<const float> logits) {
  const Scan found = scan(logits);
  if (logits.empty() || !found.is_finite) return std::nullopt;
  return index_of_best(logits, found);
}

void compute_weights(SamplerScratch& scratch, Distance distance) {
  const size_t count = scratch.logits.size();
  scratch.weights.resize(count);
  const float* logits = scratch.logits.data();
  float* weights = scratch.weights.data();
  for (size_t i = 0; i < count; ++i) weights[i] = decay_weight(distance(logits[i]));
}

void keep_most_probable(SamplerScratch& scratch, Distance distance, int64_t top_k, double top_p, double min_p) {
  const bool by_count = top_k > 0 && static_cast<size_t>(top_k) < scratch.weights.size();
  const bool by_mass = top_p < 1.0;
  if (by_count || by_mass) {
    fill_buckets(scratch, distance);
    const std::optional<uint64_t> cut = by_count ? count_cut(scratch, top_k, top_p) : mass_cut(scratch, top_p);
    if (cut) drop_behind(scratch, *cut);
  }
  if (min_p > 0.0) {
    for (float& weight : scratch.weights) weight = static_cast<double>(weight) >= min_p ? weight : 0.f;
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

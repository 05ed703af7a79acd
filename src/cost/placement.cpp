#include "cost/placement.h"

#include <algorithm>
#include <cmath>

namespace tandem {

FixedMemory fixed_memory(const WeightSizes& weights, bool tied, double cache_bytes, double scratch_bytes) {
  FixedMemory fixed;
  fixed.trunk = static_cast<double>(weights.trunk.bytes + weights.head.bytes + weights.vector_bytes);
  fixed.embedding = tied ? 0.0 : static_cast<double>(weights.group(TensorGroup::kEmbedding).bytes);
  fixed.cache = cache_bytes;
  fixed.scratch = scratch_bytes;
  return fixed;
}

Placement place_weights(const WeightSizes& weights, const FixedMemory& fixed, const Machine& machine) {
  Placement place;
  place.experts = weights.num_experts();
  if (!machine.memory_bytes) {
    place.memory_experts = place.experts;
    return place;
  }
  place.known = true;
  place.memory_bytes = *machine.memory_bytes;
  const auto slots = [&](double bytes) {
    if (weights.expert.bytes == 0 || bytes <= 0) return int64_t{0};
    const double fitting = std::floor(bytes / static_cast<double>(weights.expert.bytes));
    return static_cast<int64_t>(std::min(fitting, static_cast<double>(place.experts)));
  };
  const double needed = fixed.trunk + fixed.cache + fixed.scratch;
  place.trunk_missing = std::max(needed - *machine.memory_bytes, 0.0);
  place.memory_experts = slots(*machine.memory_bytes - fixed.total());
  place.host_experts = std::min(slots(machine.host_bytes), place.experts - place.memory_experts);
  place.disk_experts = place.experts - place.memory_experts - place.host_experts;
  return place;
}

}  // namespace tandem

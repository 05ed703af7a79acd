// cost/placement.h: where the weights lie when memory is short: trunk, caches and scratch first, then routed experts in
// GPU memory, in host memory, and the rest on disk (docs/planner.md). Threading: pure functions.
//
//   Experts are taken as chosen independently and evenly: a slot holds its share of the hits. A real trace does better.
#pragma once

#include <cstdint>

#include "cost/machine.h"
#include "cost/step_cost.h"

namespace tandem {

// Bytes that every step needs in memory.
struct FixedMemory {
  double trunk = 0;      // matrices, head, f32 vectors
  double embedding = 0;  // the table, unless the head is it: rows are looked up, so it is the first to stay on disk
  double cache = 0;
  double scratch = 0;
  double total() const { return trunk + embedding + cache + scratch; }
};

struct Placement {
  bool known = false;          // the machine's memory is
  double memory_bytes = 0;     // of the machine
  double trunk_missing = 0;    // bytes of trunk, caches and scratch that do not fit: read from disk every step
  int64_t experts = 0;         // all of them
  int64_t memory_experts = 0;  // in the memory that computes
  int64_t host_experts = 0;    // in host memory, behind the link
  int64_t disk_experts = 0;
  double share_host() const { return experts == 0 ? 0 : static_cast<double>(host_experts) / experts_d(); }
  double share_disk() const { return experts == 0 ? 0 : static_cast<double>(disk_experts) / experts_d(); }

 private:
  double experts_d() const { return static_cast<double>(experts); }
};

FixedMemory fixed_memory(const WeightSizes& weights, bool tied, double cache_bytes, double scratch_bytes);
Placement place_weights(const WeightSizes& weights, const FixedMemory& fixed, const Machine& machine);

}  // namespace tandem

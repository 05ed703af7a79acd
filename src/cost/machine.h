// cost/machine.h: what a machine can move and compute, and how much of it the engine reaches.
//
//   A floor is at the ceilings; a prediction is at ceilings times Efficiency, plus a fixed cost of each step. Both say
//   which resource limits. Threading: plain data and pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem {

// Rates a second; none: unknown. What cannot be computed for want of a rate is not predicted.
struct Machine {
  std::string name;
  std::optional<double> memory_bytes;  // that weights and caches may take
  std::optional<double> memory_rate;   // bytes read from memory
  std::optional<double> flops_rate;
  std::optional<double> disk_rate;
  // Of a GPU: memory above is the GPU's, and experts may also lie in host memory.
  bool is_gpu = false;
  double host_bytes = 0;
  std::optional<double> host_rate;  // host memory to GPU
};

// Shares of a ceiling that the engine reaches, and time that a step takes whatever it moves. Predicted time is
// max(memory, compute) + (1 − overlap) · min(memory, compute), plus the two fixed times.
struct Efficiency {
  double memory = 1.0;           // of memory_rate
  double decode_flops = 1.0;     // of flops_rate: matrices, a token of each sequence
  double prefill_flops = 1.0;    // of flops_rate: matrices, many tokens of a sequence
  double attention_flops = 1.0;  // of flops_rate: KDA recurrence, MLA scores and values
  double disk = 1.0;             // of disk_rate
  double overlap = 1.0;          // of reads with arithmetic: 1 hides the shorter of the two
  double layer_seconds = 0.0;    // of a step, for each layer: hand-outs to threads, or kernel launches
  double row_seconds = 0.0;      // of a token, for each layer: norms, gates, routing
};

// Fitted to runs of k3-mini on two cores with AMX (docs/bench/k3-mini-cpu.json, docs/planner.md).
Efficiency cpu_efficiency();
// Assumed: no GPU backend is measured.
Efficiency gpu_efficiency();

struct GpuFacts {
  std::string_view name;
  double memory_bytes;
  double memory_rate;
  double flops_rate;  // bf16 tensor cores, f32 accumulation, dense
  double host_rate;   // of its host link, one direction: 80 % of PCIe's raw rate
};
std::span<const GpuFacts> known_gpus();

// "H200", "8xH200" (memory and rates added up, communication not counted), or "BYTES,BYTES/S,FLOPS" such as
// "24GB,1TB/s,165T". The error lists the known names.
Result<Machine> parse_gpu(std::string_view text);

// A positive decimal number with an optional factor and unit: "6GB", "1.5TiB", "4.8TB/s", "989TFLOPS", "300G", "1e9".
std::optional<double> parse_quantity(std::string_view text);

}  // namespace tandem

// cost/model_plan.h: everything `tandem plan` says of a model, from its configuration and headers: memory by part,
// where weights lie, floors and predictions, knees, prefix restores, the comparison. docs/planner.md explains each
// line.
//   Threading: pure but for reading the headers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cost/attention_compare.h"
#include "cost/cache_memory.h"
#include "cost/placement.h"
#include "cost/speed.h"
#include "cost/step_scratch.h"

namespace tandem {

struct PlanOptions {
  Machine machine;
  Efficiency efficiency;
  AttentionPath path = AttentionPath::kFast;
  DType cache_dtype = DType::kF32;
  int64_t context = 0;  // tokens of a sequence; 0: 32768, or what the model states
  int64_t sequences = 1;
  int64_t prompt = 0;         // tokens; 0: 2048, or the context
  int64_t prefill_chunk = 0;  // tokens of a step; 0: 512, on a GPU 8192
  int64_t hash_unit = 128;
  std::vector<int64_t> batches = {};  // of decode; empty: 1, 8, 32 and the sequences
  int threads = 1;
  KernelBackend kernels = KernelBackend::kAvx512;  // whose scratch is counted
  std::optional<CompareOptions> compare = std::nullopt;
};

struct DecodePoint {
  int64_t context = 0;
  int64_t batch = 1;
  double distinct_experts = 0;  // of a layer, a step
  StepCost cost;
  std::optional<PhaseTime> time;
};

struct PrefillPoint {
  int64_t tokens = 0;
  StepCost cost;
  std::optional<PhaseTime> time;  // all of it is TTFT
};

struct RestorePoint {
  std::string tier;  // "memory", "disk"
  double rate = 0;
  int64_t tokens = 0;
  PrefixHit hit;
  std::optional<int64_t> break_even_tokens;
};

struct ModelPlan {
  std::string model;
  bool from_headers = false;  // else from config.json: as released
  ModelCost cost;
  PlanOptions options;  // resolved
  CacheMemory cache;    // of one sequence at options.context
  StepScratch prefill_scratch, decode_scratch;
  FixedMemory fixed;  // with options.sequences sequences
  Placement placement;
  double resident_memory_bytes = 0;  // with every expert in memory
  std::optional<double> memory_to_hide_disk;
  std::vector<DecodePoint> decode;
  std::vector<PrefillPoint> prefill;
  std::optional<double> decode_knee;  // batch, at options.context
  std::optional<double> prefill_knee;
  std::vector<RestorePoint> restores;
  std::optional<Comparison> comparison;
  std::vector<std::string> notes;  // sentences: what to know before believing the rest
};

// `model`: a checkpoint folder (headers-only will do), a folder with config.json alone, or a config.json.
Result<ModelPlan> make_model_plan(const std::string& model, const PlanOptions& options);

// The parts that need no file.
Result<ModelPlan> plan_of(ModelCost cost, const PlanOptions& options);

}  // namespace tandem

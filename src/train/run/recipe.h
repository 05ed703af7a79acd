// train/run/recipe.h: a training recipe: one JSON file that says everything about a run but the machine.
//
//   {"run": folder, "model": "…/config.json", "tokenizer": folder, "init": {"seed": 1} or {"from": run or model
//   folder},
//    "data": {"name": ["shards, globs"]},
//    "curriculum": [{"data": "name", "length": 1024, "tokens": 1e8, "pack": "stream" | "documents"}],
//    "validation": {"data": "name", "length": 1024, "sequences": 64, "every_steps": 100, "pack": "documents"},
//    "batch_tokens": 65536, "micro_batch_tokens": 16384,
//    "optimizer": {"learning_rate", "warmup_share", "final_share", "weight_decay", "clip_norm", "muon_momentum"},
//    "compute": "bf16" | "fp32", "mxfp4_experts": bool, "mxfp8_activations": bool, "mtp_loss_weight": 0.1,
//    "balancing": "histogram" | "exact" | "none", "recompute_sublayers": bool, "chunk_size": 64,
//    "require_loss_mask": bool, "checkpoint": {"every_steps", "keep"}, "log_every_steps", "explode_factor", "seed"}
//
//   Paths are relative to the recipe's folder, in an override to the current folder. Unknown keys are refused. Every
//   fault is reported in one Status, a line each, with the key's path. No torch in here. Plain values: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "corpus/packed_sequences.h"

namespace tandem::train {

// What differs between the two is defaults and what must be there: fine-tuning starts from a run, wants loss masks, and
// has MXFP4 experts unless told otherwise.
enum class RunKind { kPretrain, kSft };
enum class ComputeType { kBf16, kFp32 };
enum class BalancingKind { kNone, kHistogram, kExact };

struct RecipeStage {
  std::string data;
  int64_t length = 0;
  int64_t tokens = 0;
  PackMode pack = PackMode::kStream;
};

struct RecipeValidation {
  std::string data;
  int64_t length = 0;
  int64_t sequences = 64;  // at most; the first ones
  int64_t every_steps = 100;
  PackMode pack = PackMode::kStream;
};

struct RecipeOptimizer {
  double learning_rate = 0;
  double warmup_share = 0.01;
  double final_share = 0.1;
  double weight_decay = 0.1;
  double clip_norm = 1.0;
  double muon_momentum = 0.95;
};

// Of the token after next, for a model with an MTP layer. UNVERIFIED: the released models' is not public.
inline constexpr double kDefaultMtpLossWeight = 0.1;

struct Recipe {
  RunKind kind = RunKind::kPretrain;
  std::string origin;     // the recipe's own path
  std::string run;        // folder
  std::string model;      // path of a config.json
  std::string tokenizer;  // folder; empty: the run has no tokenizer
  std::optional<std::string> init_from;
  uint64_t init_seed = 1;
  std::map<std::string, std::vector<std::string>> data;  // paths of shards, globs expanded in byte order
  std::vector<RecipeStage> curriculum;
  std::optional<RecipeValidation> validation;
  int64_t batch_tokens = 0;
  int64_t micro_batch_tokens = 0;
  RecipeOptimizer optimizer;
  std::optional<ComputeType> compute;  // nothing: bf16 on CUDA, fp32 on a CPU
  bool mxfp4_experts = false;
  bool mxfp8_activations = false;
  std::optional<double> mtp_loss_weight;  // nothing: the default
  BalancingKind balancing = BalancingKind::kHistogram;
  bool recompute_sublayers = false;
  int64_t chunk_size = 64;
  bool require_loss_mask = false;
  int64_t checkpoint_every_steps = 500;
  int64_t checkpoint_keep = 2;
  int64_t log_every_steps = 10;
  double explode_factor = 3.0;  // train/run/loss_guard.h
  uint64_t seed = 1;

  int64_t longest_length() const;
};

// `overrides`: "key.path=value", a list's entries by number: "curriculum.0.tokens=1e6". The value is JSON, or else
// text.
Result<Recipe> load_recipe(const std::string& path, RunKind kind, std::span<const std::string> overrides = {});

// The recipe with every default written out and absolute paths.
std::string recipe_json(const Recipe& recipe);

}  // namespace tandem::train

#include <nlohmann/json.hpp>

#include "train/run/recipe.h"

namespace tandem::train {
namespace {

std::string_view name_of(PackMode pack) { return pack == PackMode::kStream ? "stream" : "documents"; }

std::string_view name_of(BalancingKind kind) {
  switch (kind) {
    case BalancingKind::kNone: return "none";
    case BalancingKind::kHistogram: return "histogram";
    case BalancingKind::kExact: return "exact";
  }
  return "";
}

}  // namespace

std::string recipe_json(const Recipe& recipe) {
  nlohmann::ordered_json out;
  out["run"] = recipe.run;
  out["model"] = recipe.model;
  if (!recipe.tokenizer.empty()) out["tokenizer"] = recipe.tokenizer;
  if (recipe.init_from) {
    out["init"]["from"] = *recipe.init_from;
  } else {
    out["init"]["seed"] = recipe.init_seed;
  }
  for (const auto& [name, shards] : recipe.data) out["data"][name] = shards;
  for (const RecipeStage& stage : recipe.curriculum) {
    out["curriculum"].push_back(
        {{"data", stage.data}, {"length", stage.length}, {"tokens", stage.tokens}, {"pack", name_of(stage.pack)}});
  }
  if (recipe.validation) {
    const RecipeValidation& v = *recipe.validation;
    out["validation"] = {{"data", v.data},
                         {"length", v.length},
                         {"sequences", v.sequences},
                         {"every_steps", v.every_steps},
                         {"pack", name_of(v.pack)}};
  }
  out["batch_tokens"] = recipe.batch_tokens;
  out["micro_batch_tokens"] = recipe.micro_batch_tokens;
  const RecipeOptimizer& o = recipe.optimizer;
  out["optimizer"] = {{"learning_rate", o.learning_rate}, {"warmup_share", o.warmup_share},
                      {"final_share", o.final_share},     {"weight_decay", o.weight_decay},
                      {"clip_norm", o.clip_norm},         {"muon_momentum", o.muon_momentum}};
  if (recipe.compute) out["compute"] = *recipe.compute == ComputeType::kBf16 ? "bf16" : "fp32";
  out["mxfp4_experts"] = recipe.mxfp4_experts;
  out["mxfp8_activations"] = recipe.mxfp8_activations;
  if (recipe.mtp_loss_weight) out["mtp_loss_weight"] = *recipe.mtp_loss_weight;
  out["balancing"] = name_of(recipe.balancing);
  out["recompute_sublayers"] = recipe.recompute_sublayers;
  out["chunk_size"] = recipe.chunk_size;
  out["require_loss_mask"] = recipe.require_loss_mask;
  out["checkpoint"] = {{"every_steps", recipe.checkpoint_every_steps}, {"keep", recipe.checkpoint_keep}};
  out["log_every_steps"] = recipe.log_every_steps;
  out["explode_factor"] = recipe.explode_factor;
  out["seed"] = recipe.seed;
  return out.dump(2) + "\n";
}

}  // namespace tandem::train

// apps/tandem/model_flags.h: the flags of every command that runs a model.
#pragma once

#include <memory>
#include <optional>

#include "base/result.h"
#include "command.h"
#include "engine/loaded_model.h"

namespace tandem::app {

struct ModelFlags {
  std::string model_dir;
  std::string activation_dtype = "f32";
  std::string cache_dtype = "f32";
  std::string expert_act = "f32";
  std::optional<int64_t> context;
  std::string ram;  // empty: what is available
};

// What the command will ask of the memory beside the weights; LoadOptions has the meanings.
struct ModelNeeds {
  int64_t step_rows = 512;
  int64_t step_sequences = 1;
  int64_t cache_bytes = 0;
  double cache_share = 0.0;
};

// Adds MODEL and the numeric options, with the common flags.
void add_model_flags(CLI::App* command, ModelFlags& flags, CommonFlags& common);

// Opens the model and logs the kernels in use on stderr, and what is streamed from disk when not all of it is resident.
Result<std::unique_ptr<LoadedModel>> load_model(const ModelFlags& flags, const CommonFlags& common,
                                                const ModelNeeds& needs = {});

}  // namespace tandem::app

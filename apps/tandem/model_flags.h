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
  std::string weights = "auto";
  std::string trunk = "stored";
  std::optional<int64_t> context;
  std::string ram;  // empty: what is available
};

// Adds MODEL and the numeric options, with the common flags.
void add_model_flags(CLI::App* command, ModelFlags& flags, CommonFlags& common);

// Opens the model and logs the kernels in use on stderr, and what is streamed from disk when not all of it is resident.
// `memory` says what the command needs beside the weights; the budget is the flag's.
Result<std::unique_ptr<LoadedModel>> load_model(const ModelFlags& flags, const CommonFlags& common,
                                                MemoryOptions memory = {});

}  // namespace tandem::app

// apps/tandem-train/training_command.h: what `pretrain` and `sft` share: all but their defaults and words.
#pragma once

#include <string>

#include "command_line.h"
#include "train/run/recipe.h"

namespace tandem::app {

void register_training(CLI::App& app, int& exit_code, train::RunKind kind, const std::string& name,
                       const std::string& description, const std::string& footer);

}  // namespace tandem::app

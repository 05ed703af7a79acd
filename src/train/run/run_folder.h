// train/run/run_folder.h: the files of a run, and what must be the same when it goes on.
//
//     recipe.json  config.json  tiktoken.model  tokenizer_config.json  generation_config.json  log.jsonl
//     checkpoints/step-00001234.pt  bad-step-1234.json
//
//   The identity of a run is a JSON object of what decides its numbers, by recipe key; the model and the data by
//   content, so that files may move. What only decides speed, memory or reporting is left out.
//   No torch in here. Threading: the training thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "train/run/recipe.h"

namespace tandem::train {

std::string checkpoint_path(const std::string& run_dir, int64_t step);
// Steps of the checkpoints that are there, ascending.
std::vector<int64_t> list_checkpoints(const std::string& run_dir);
// Removes all but the newest `keep`.
Status prune_checkpoints(const std::string& run_dir, int64_t keep);
// The file keeps its content under another name, which no list shows.
Status set_aside_damaged(const std::string& path);

enum class ExistingRun { kRefuse, kResume, kOverwrite };
// Of a folder that exists: kFailedPrecondition when there is a run and nothing says what to do with it;
// kInvalidArgument when there are other files. Changes nothing.
Status check_run_folder(const std::string& run_dir, ExistingRun existing);
// After the same checks: the folder of the checkpoints is there, what a killed process left half written goes, and with
// kOverwrite the files of the run that is there.
Status prepare_run_folder(const std::string& run_dir, ExistingRun existing);
// Recipe, configuration and tokenizer files.
Status write_run_files(const Recipe& recipe, std::string_view config_json);

std::string run_identity(const Recipe& recipe, std::string_view config_json,
                         const std::map<std::string, std::vector<std::string>>& fingerprints);
// kFailedPrecondition listing every key that differs.
Status check_identity(const std::string& run_dir, const std::string& of_run, const std::string& of_recipe);

}  // namespace tandem::train

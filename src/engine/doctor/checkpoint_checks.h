// engine/doctor/checkpoint_checks.h: whether a folder holds a whole checkpoint that this engine binds completely, from
// its configuration, index and shard headers: 1.56 TB in seconds.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "base/thread_pool.h"
#include "config/model_config.h"
#include "engine/doctor/machine_checks.h"
#include "weights/checkpoint.h"
#include "weights/checkpoint_check.h"

namespace tandem {

struct CheckpointFacts {
  std::optional<ModelConfig> config;
  std::optional<Checkpoint> checkpoint;     // headers only; none: absent or contradictory files
  std::optional<CheckpointReport> tensors;  // of a bare config.json: as released
  bool can_run() const { return config && checkpoint && tensors && tensors->is_clean(); }
};

// checkpoint: config, files, tensors, layers, tokenizer, generation_config. `model` is a folder or a bare config.json.
CheckpointFacts check_checkpoint_folder(const std::string& model, TellCheck tell);

struct HashOptions {
  bool compute = false;  // else only what there is to compare with is told
  bool write = false;    // SHA256SUMS, when there is none
  const std::atomic<bool>* cancel = nullptr;
};
// checkpoint: downloads, hashes.
void check_hashes(const std::string& model_dir, const HashOptions& options, ThreadPool& pool, TellCheck tell,
                  FunctionRef<void(const std::string&)> progress);

}  // namespace tandem

// weights/random_init.h: a valid checkpoint with random weights for any configuration: released names, types, padding
// and MXFP4 packing, a toy tokenizer, numbers that keep activations healthy through depth.
//
//   The files depend on the configuration, the seed and the shard size, not on the machine or the number of threads.
//   They appear together at the end; after a failure nothing is left, not even the folder if it was made here.
//   Disk: as much as the checkpoint, asked for beforehand. Memory: about 150 bytes a tensor and 1 MiB a thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/function_ref.h"
#include "base/result.h"
#include "base/thread_pool.h"

namespace tandem {

struct InitOptions {
  uint64_t seed = 0;
  // Nothing: 5 GB, or more so that there are not more than about 96 shards.
  std::optional<uint64_t> shard_bytes = std::nullopt;
  bool headers_only = false;  // complete headers, sparse data sections that read as zero
  bool overwrite = false;     // accept an output folder with files in it
  // Set by anyone, a signal handler too: stop soon with kCancelled and leave nothing behind.
  const std::atomic<bool>* cancel = nullptr;
};

struct InitReport {
  int64_t num_tensors = 0;
  uint64_t tensor_bytes = 0;
  int64_t num_shards = 0;
  int64_t vocab_size = 0;
  bool has_tokenizer = false;
};

using InitProgress = FunctionRef<void(uint64_t done_bytes, uint64_t total_bytes)>;

// `origin` names the configuration in messages; `progress` is called now and then by the calling thread.
Result<InitReport> init_random_checkpoint(std::string_view config_json, std::string_view origin,
                                          const std::string& output_dir, const InitOptions& options, ThreadPool& pool,
                                          InitProgress progress);

}  // namespace tandem

// engine/loaded_model.h: a checkpoint folder opened for running: configuration, mapped weights, kernels, threads and,
// when its files are there, the tokenizer.
//
//   Immovable: the parts refer to each other. Threading: engine thread only, but for the const accessors.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/cpu_topology.h"
#include "base/result.h"
#include "cache/cache_layout.h"
#include "config/generation_config.h"
#include "config/model_config.h"
#include "engine/memory_budget.h"
#include "engine/streamed_weights.h"
#include "kernels/kernel_table.h"
#include "model/forward.h"
#include "text/tokenizer.h"
#include "weights/checkpoint.h"
#include "weights/model_weights.h"
#include "weights/resident_weights.h"

namespace tandem {

// Where the matrices lie: views of the mapped file, or copied into huge pages, which are read faster.
enum class WeightPlacement : uint8_t {
  kAuto,      // resident when a tenth of the available memory is left; else the trunk alone, else none
  kMapped,    // pages come and go with the page cache
  kResident,  // or the load fails
};

struct LoadOptions {
  ModelOptions model;
  DType cache_dtype = DType::kF32;
  WeightPlacement weights = WeightPlacement::kAuto;
  TrunkFormat trunk = TrunkFormat::kStored;  // kInt8 needs a resident trunk: kMapped is refused
  std::optional<KernelBackend> kernels;      // none: the best of this CPU
  int num_threads = 1;
  CpuList cpus;                    // thread i is bound to cpus[i]; empty: the kernel's choice
  MemoryOptions memory;            // what does not fit is streamed from disk: engine/streamed_weights.h
  std::optional<int64_t> context;  // tokens of a sequence at most; none: what the configuration states, else memory
};

class LoadedModel {
 public:
  static Result<std::unique_ptr<LoadedModel>> load(const std::string& model_dir, const LoadOptions& options);
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  const std::string& dir() const { return dir_; }
  const ModelConfig& config() const { return config_; }
  const ModelWeights& weights() const { return weights_; }
  const Model& model() const { return *model_; }
  const ExecContext& exec() const { return exec_; }
  const CacheLayout& cache_layout() const { return cache_layout_; }
  const StreamedWeights* streamed() const { return streamed_.get(); }  // null: all weights are in memory
  ExpertStore* experts() const { return streamed_ != nullptr ? streamed_->experts() : nullptr; }  // likewise
  const GenerationConfig& generation_config() const { return generation_config_; }
  int64_t context_limit() const { return context_limit_; }
  uint64_t resident_bytes() const { return resident_.bytes(); }  // 0: every matrix is a view of the file

  // Binds the calling thread, the one that computes with this model, to the first of LoadOptions::cpus, if any.
  // Threads that it starts later inherit that.
  void bind_engine_thread() const;

  // The tokenizer, or the error that names the missing or broken file.
  Result<const Tokenizer*> tokenizer() const;

  // Ids that end a generation: [EOS] and end_of_msg by name, and what the configuration files list.
  std::vector<TokenId> stop_tokens() const;

 private:
  LoadedModel(std::string dir, ModelConfig config, Checkpoint checkpoint, KernelTable kernels,
              const LoadOptions& options);
  Status bind(const LoadOptions& options);
  Status bind_weights(const LoadOptions& options);
  Status place_weights(const LoadOptions& options);
  StepShape step_shape(const LoadOptions& options) const;

  std::string dir_;
  ModelConfig config_;
  Checkpoint checkpoint_;
  KernelTable kernels_;
  CpuList cpus_;
  ThreadPool pool_;
  Arena arena_;
  ExecContext exec_;
  ResidentWeights resident_;  // what views of weights_ point into
  ModelWeights weights_;
  std::unique_ptr<StreamedWeights> streamed_;
  std::optional<Model> model_;
  CacheLayout cache_layout_;
  GenerationConfig generation_config_;
  std::optional<Tokenizer> tokenizer_;
  Status tokenizer_status_;
  int64_t context_limit_ = 0;
};

}  // namespace tandem

// engine/streamed_weights.h: the weights of a model that does not fit: which parts stay, and the streams of the others.
// Threading: engine thread only. What it is made from outlives it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/arena.h"
#include "base/result.h"
#include "cache/cache_layout.h"
#include "config/model_config.h"
#include "cost/step_scratch.h"
#include "engine/memory_budget.h"
#include "stream/expert_store.h"
#include "stream/trunk_stream.h"
#include "weights/checkpoint.h"
#include "weights/checkpoint_check.h"
#include "weights/model_weights.h"

namespace tandem {

// Whether a model is worth a closer look: a budget was asked for, or its files are larger than the memory that is
// there.
bool may_not_fit(const Checkpoint& checkpoint, const MemoryOptions& options);

class StreamedWeights {
 public:
  struct Parts {
    const Checkpoint& checkpoint;
    const ModelConfig& config;
    const CacheLayout& cache_layout;
    const Arena& arena;
    const CheckpointReport& stored;  // of binding: what the file holds
    StepShape step;                  // of any step, but for its rows
  };
  // `weights` are bound with streamed_experts. Null when everything fits. kResourceExhausted below the least budget.
  static Result<std::unique_ptr<StreamedWeights>> fit(const Parts& parts, ModelWeights& weights,
                                                      const MemoryOptions& options);
  StreamedWeights(const StreamedWeights&) = delete;
  StreamedWeights& operator=(const StreamedWeights&) = delete;

  ExpertStore* experts() const { return experts_.get(); }                 // null: the model has none
  TrunkStream* trunk() const { return trunk_.get(); }                     // null: it is resident
  int64_t promised_cache_bytes() const { return promised_cache_bytes_; }  // MemoryOptions' bytes and share
  int64_t budget_bytes() const { return budget_bytes_; }                  // of the whole process
  const std::string& summary() const { return summary_; }                 // one line: what stays, what is streamed

 private:
  StreamedWeights() = default;
  Status start(const Parts& parts, ModelWeights& weights, const MemoryNeeds& needs, const MemoryDecision& decision);

  std::unique_ptr<ExpertStore> experts_;
  std::unique_ptr<TrunkStream> trunk_;
  std::optional<MemoryKeeper> keeper_;
  int64_t promised_cache_bytes_ = 0;
  int64_t budget_bytes_ = 0;
  std::string summary_;
};

}  // namespace tandem

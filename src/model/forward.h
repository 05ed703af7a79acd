// model/forward.h: one forward pass of a Kimi-K3-family text model over a step plan.
//
//   The model owns no state of a sequence: caches come in as views, are checked against the plan before anything is
//   touched, and are advanced by exactly the plan's tokens. A failure after that point leaves the plan's caches
//   unusable; they say so through their positions (cache/layer_cache.h) and must be reset or restored.
//   Threading: engine thread only. A warm step of a known shape allocates nothing but from the arena.
#pragma once

#include <span>

#include "base/result.h"
#include "cache/layer_cache.h"
#include "config/model_config.h"
#include "kernels/exec_context.h"
#include "model/expert_source.h"
#include "model/layer_source.h"
#include "model/model_options.h"
#include "model/observer.h"
#include "model/phase_times.h"
#include "plan/step_plan.h"
#include "tensor/view.h"
#include "weights/model_weights.h"

namespace tandem {

class ResidualStream;

// What one step reads: shared by the layers.
struct StepContext {
  const ExecContext& exec;
  const ModelConfig& config;
  const ModelOptions& options;
  const StepPlan& plan;
  std::span<const SequenceCacheView> caches;
  ExpertSource* experts = nullptr;                // null: all routed experts are in memory
  StepObserver* observer = nullptr;               // may be null
  PhaseTimes* times = nullptr;                    // may be null
  std::span<const RowRange> prefill = {};         // rows of the plan that belong to prompts
  std::span<const RowRange> wanted_prefill = {};  // of its wanted rows, those
  int64_t num_rows = 0;  // of the activations: the plan's, or behind the last attention its wanted rows
};

class Model {
 public:
  // Borrows all; they outlive the model. Without sources the weights are read where they lie.
  Model(const ModelConfig& config, const ModelWeights& weights, ModelOptions options, ExpertSource* experts = nullptr,
        LayerSource* layers = nullptr);

  // Resets ctx.arena, runs the plan and returns the logits of the wanted rows, in plan order: [rows, vocab] in the
  // arena, valid until its next reset. kInvalidArgument for tokens outside the vocabulary or an inconsistent plan,
  // kFailedPrecondition for caches at another position or without room.
  Result<MatrixView<float>> forward(const ExecContext& ctx, const StepPlan& plan,
                                    std::span<const SequenceCacheView> caches, StepObserver* observer = nullptr,
                                    PhaseTimes* times = nullptr) const;

  const ModelConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }

 private:
  Result<MatrixView<float>> run(const StepContext& step) const;
  // Logits of the wanted rows; `only_wanted`: the stream has kept no others.
  Result<MatrixView<float>> head(const StepContext& step, ResidualStream& residual, bool only_wanted) const;

  const ModelConfig& config_;
  const ModelWeights& weights_;
  ModelOptions options_;
  ExpertSource* experts_;
  LayerSource* layers_;
};

}  // namespace tandem

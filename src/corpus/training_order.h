// corpus/training_order.h: which sequences a training step reads, as a pure function of the step: resuming a run needs
// one integer, and any rank can ask for any step.
//
//   A curriculum is a list of stages (tokens, sequence length). A step is batch_tokens tokens, so batch_tokens / length
//   sequences, and lies in one stage: a stage's tokens are rounded up to whole steps. Within a stage of n sequences,
//   number i is place i mod n of epoch i / n, and each epoch is a permutation of its own (index_permutation.h) of seed,
//   stage and epoch. Needs base/ only. Immutable: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace tandem {

struct CurriculumStage {
  int64_t tokens = 0;
  int64_t length = 0;
};

class TrainingOrder {
 public:
  // `num_sequences[k]`: how many sequences of its length stage k has. The message of a refusal names the stage.
  static Result<TrainingOrder> create(uint64_t seed, int64_t batch_tokens, std::span<const CurriculumStage> stages,
                                      std::span<const uint64_t> num_sequences);

  int64_t num_steps() const { return stages_.back().first_step + stages_.back().num_steps; }
  int64_t total_tokens() const { return num_steps() * batch_tokens_; }

  struct Step {
    size_t stage = 0;
    int64_t length = 0;
    uint64_t first = 0;         // number of the step's first sequence within the stage
    int64_t num_sequences = 0;  // of the step
  };
  Step step(int64_t step) const;  // 0 <= step < num_steps()

  struct Place {
    uint64_t epoch = 0;
    uint64_t sequence = 0;  // index into the stage's packed sequences
  };
  Place place(size_t stage, uint64_t number) const;

 private:
  struct Stage {
    int64_t length;
    int64_t first_step;
    int64_t num_steps;
    uint64_t num_sequences;
  };
  TrainingOrder() = default;

  uint64_t seed_ = 0;
  int64_t batch_tokens_ = 0;
  std::vector<Stage> stages_;
};

}  // namespace tandem

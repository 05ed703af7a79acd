#include "corpus/training_order.h"

#include "base/cat.h"
#include "base/check.h"
#include "corpus/index_permutation.h"
#include "corpus/stable_random.h"

namespace tandem {

Result<TrainingOrder> TrainingOrder::create(uint64_t seed, int64_t batch_tokens,
                                            std::span<const CurriculumStage> stages,
                                            std::span<const uint64_t> num_sequences) {
  if (stages.empty()) return Status::invalid("curriculum: expected a stage, found none");
  if (stages.size() != num_sequences.size()) {
    return Status::invalid(
        cat("curriculum: expected the sequences of ", stages.size(), " stages, found ", num_sequences.size()));
  }
  if (batch_tokens < 1) return Status::invalid(cat("batch tokens: expected 1 or more, found ", batch_tokens));
  TrainingOrder order;
  order.seed_ = seed;
  order.batch_tokens_ = batch_tokens;
  int64_t first_step = 0;
  for (size_t k = 0; k < stages.size(); ++k) {
    const auto [tokens, length] = stages[k];
    if (tokens < 1 || tokens > INT64_MAX / 2 - batch_tokens) {
      return Status::invalid(cat("curriculum stage ", k, ": expected a number of tokens of 1 or more, found ", tokens));
    }
    if (length < 1 || batch_tokens % length != 0) {
      return Status::invalid(cat("curriculum stage ", k, ": expected a length that divides the batch of ", batch_tokens,
                                 " tokens, found ", length));
    }
    if (num_sequences[k] < 1) return Status::invalid(cat("curriculum stage ", k, ": expected sequences, found none"));
    const int64_t num_steps = (tokens + batch_tokens - 1) / batch_tokens;
    order.stages_.push_back({length, first_step, num_steps, num_sequences[k]});
    first_step += num_steps;
  }
  return order;
}

TrainingOrder::Step TrainingOrder::step(int64_t step) const {
  TANDEM_CHECK(step >= 0 && step < num_steps(), "a step of the curriculum");
  size_t k = 0;
  while (step >= stages_[k].first_step + stages_[k].num_steps) ++k;
  const int64_t num_sequences = batch_tokens_ / stages_[k].length;
  return {k, stages_[k].length, static_cast<uint64_t>((step - stages_[k].first_step) * num_sequences), num_sequences};
}

TrainingOrder::Place TrainingOrder::place(size_t stage, uint64_t number) const {
  TANDEM_CHECK(stage < stages_.size(), "a stage of the curriculum");
  const uint64_t n = stages_[stage].num_sequences;
  const uint64_t epoch = number / n;
  const IndexPermutation permutation(n, combine_bits(combine_bits(seed_, stage), epoch));
  return {epoch, permutation[number % n]};
}

}  // namespace tandem

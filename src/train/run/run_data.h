// train/run/run_data.h: the token shards of a recipe as the sequences of each training step.
//
//   Which sequences a step reads is a function of the step alone (corpus/training_order.h). What identifies the data is
//   the content of the shards, not their paths: a run can go on where they lie elsewhere.
//   No torch in here. Threading: immutable once opened; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "corpus/packed_sequences.h"
#include "corpus/training_order.h"
#include "train/run/recipe.h"

namespace tandem::train {

struct SequencePlace {
  size_t stage = 0;  // of the curriculum
  uint64_t epoch = 0;
  uint64_t sequence = 0;  // within the stage's packed sequences
};

class RunData {
 public:
  // Every shard is read once to check it. kInvalidArgument names the data set or the stage.
  static Result<RunData> open(const Recipe& recipe, int64_t vocab_size, std::optional<int32_t> pad_token_id);

  const TrainingOrder& order() const { return *order_; }
  std::vector<SequencePlace> step_places(int64_t step) const;
  void read(const SequencePlace& place, PackedSequence& out) const { stages_[place.stage].read(place.sequence, out); }
  // Tokens of a stage, each counted once, and how many of its positions hold tokens.
  const PackedSequences& stage(size_t k) const { return stages_[k]; }

  // nullptr without a validation set.
  const PackedSequences* validation() const { return validation_ ? &*validation_ : nullptr; }

  // Content of each data set that training reads, by name: one hexadecimal hash a shard.
  const std::map<std::string, std::vector<std::string>>& fingerprints() const { return fingerprints_; }

  struct FilePlace {
    std::string path;
    uint64_t token = 0;  // within the file
  };
  // Where a sequence of a kStream stage begins; nothing for packed documents, which come from many places.
  std::optional<FilePlace> file_place(const Recipe& recipe, const SequencePlace& place) const;

 private:
  RunData() = default;
  Status open_sets(const Recipe& recipe, int64_t vocab_size);
  Result<PackedSequences> pack(const std::string& data, int64_t length, PackMode mode) const;

  std::optional<int32_t> pad_token_id_;
  std::map<std::string, TokenDataset> sets_;  // nodes stay where they are: sequences point into them
  std::map<std::string, std::vector<std::string>> fingerprints_;
  std::vector<PackedSequences> stages_;
  std::optional<PackedSequences> validation_;
  std::optional<TrainingOrder> order_;
};

}  // namespace tandem::train

#include "train/run/run_data.h"

#include <array>
#include <cstring>
#include <set>

#include "base/cat.h"
#include "base/check.h"
#include "corpus/token_shard_format.h"
#include "weights/mapped_file.h"

namespace tandem::train {
namespace {

// Of a shard that TokenShard has accepted.
Result<TokenShardHeader> read_header(const std::string& path) {
  const Result<MappedFile> file = MappedFile::open(path, sizeof(TokenShardHeader));
  if (!file.is_ok()) return file.status();
  TokenShardHeader header;
  if (file.value().bytes().size() < sizeof header) return Status::invalid(cat(path, ": shorter than its header"));
  std::memcpy(&header, file.value().bytes().data(), sizeof header);
  return header;
}

std::string hex(uint64_t value) {
  std::string text(16, '0');
  for (size_t i = 16; i-- > 0; value >>= 4) text[i] = "0123456789abcdef"[value & 15];
  return text;
}

Status in_key(const std::string& key, const Status& status) {
  return {status.code(), cat(key, ": ", status.message())};
}

}  // namespace

Status RunData::open_sets(const Recipe& recipe, int64_t vocab_size) {
  std::set<std::string> training, all;
  for (const RecipeStage& stage : recipe.curriculum) training.insert(stage.data);
  all = training;
  if (recipe.validation) all.insert(recipe.validation->data);
  for (const std::string& name : all) {
    const std::string key = cat("data.", name);
    const std::vector<std::string>& paths = recipe.data.at(name);
    Result<TokenDataset> set = TokenDataset::open(paths);
    if (!set.is_ok()) return in_key(key, set.status());
    if (set.value().vocab_size() > vocab_size) {
      return Status::invalid(cat(key, ": expected shards of at most the model's vocabulary, ", vocab_size,
                                 " ids, found ", set.value().vocab_size()));
    }
    sets_.emplace(name, std::move(set).value());
    if (!training.contains(name)) continue;
    for (const std::string& path : paths) {
      const Result<TokenShardHeader> header = read_header(path);
      if (!header.is_ok()) return in_key(key, header.status());
      fingerprints_[name].push_back(hex(header.value().header_hash));
      if (recipe.require_loss_mask && (header.value().flags & kShardHasLossMask) == 0) {
        return Status::invalid(cat(key, ": ", path,
                                   ": expected a loss mask, found a shard without one (require_loss_mask: false trains "
                                   "on every token)"));
      }
    }
  }
  return Status::ok();
}

Result<PackedSequences> RunData::pack(const std::string& data, int64_t length, PackMode mode) const {
  const TokenDataset& set = sets_.at(data);
  // Padding has no target and no neighbour in its document: any id does.
  const int32_t pad = pad_token_id_ && *pad_token_id_ >= 0 && *pad_token_id_ < set.vocab_size() ? *pad_token_id_ : 0;
  return PackedSequences::create(set, length, mode, pad);
}

Result<RunData> RunData::open(const Recipe& recipe, int64_t vocab_size, std::optional<int32_t> pad_token_id) {
  RunData data;
  data.pad_token_id_ = pad_token_id;
  TANDEM_RETURN_IF_ERROR(data.open_sets(recipe, vocab_size));
  std::vector<CurriculumStage> stages;
  std::vector<uint64_t> num_sequences;
  for (size_t k = 0; k < recipe.curriculum.size(); ++k) {
    const RecipeStage& stage = recipe.curriculum[k];
    Result<PackedSequences> sequences = data.pack(stage.data, stage.length, stage.pack);
    if (!sequences.is_ok()) return in_key(cat("curriculum.", k), sequences.status());
    num_sequences.push_back(sequences.value().size());
    stages.push_back({stage.tokens, stage.length});
    data.stages_.push_back(std::move(sequences).value());
  }
  Result<TrainingOrder> order = TrainingOrder::create(recipe.seed, recipe.batch_tokens, stages, num_sequences);
  if (!order.is_ok()) return order.status();
  data.order_ = std::move(order).value();
  if (recipe.validation) {
    const RecipeValidation& v = *recipe.validation;
    Result<PackedSequences> sequences = data.pack(v.data, v.length, v.pack);
    if (!sequences.is_ok()) return in_key("validation", sequences.status());
    data.validation_ = std::move(sequences).value();
  }
  return data;
}

std::vector<SequencePlace> RunData::step_places(int64_t step) const {
  const TrainingOrder::Step plan = order_->step(step);
  std::vector<SequencePlace> places;
  places.reserve(static_cast<size_t>(plan.num_sequences));
  for (int64_t i = 0; i < plan.num_sequences; ++i) {
    const TrainingOrder::Place place = order_->place(plan.stage, plan.first + static_cast<uint64_t>(i));
    places.push_back({plan.stage, place.epoch, place.sequence});
  }
  return places;
}

std::optional<RunData::FilePlace> RunData::file_place(const Recipe& recipe, const SequencePlace& place) const {
  const RecipeStage& stage = recipe.curriculum[place.stage];
  if (stage.pack != PackMode::kStream) return std::nullopt;
  uint64_t token = place.sequence * static_cast<uint64_t>(stage.length);
  for (const std::string& path : recipe.data.at(stage.data)) {
    const Result<TokenShardHeader> header = read_header(path);
    if (!header.is_ok()) return std::nullopt;
    if (token < header.value().num_tokens) return FilePlace{path, token};
    token -= header.value().num_tokens;
  }
  return std::nullopt;
}

}  // namespace tandem::train

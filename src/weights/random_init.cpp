#include "weights/random_init.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "config/model_config.h"
#include "weights/init_values.h"
#include "weights/output_folder.h"
#include "weights/random_values.h"
#include "weights/safetensors_writer.h"
#include "weights/shard_index.h"
#include "weights/shard_plan.h"
#include "weights/tensor_names.h"
#include "weights/tensor_table.h"
#include "weights/toy_tokenizer.h"

namespace tandem {
namespace {

constexpr uint64_t kDefaultShardBytes = 5'000'000'000;
constexpr uint64_t kDefaultMaxShards = 95;           // K3 has 96 with the part that is left over
constexpr uint64_t kPieceBytes = uint64_t{1} << 20;  // whole MXFP4 groups and elements

// What a checkpoint needs beside its tensors, rounded up.
constexpr uint64_t kFileBytesPerTensor = 512;  // an entry of the header and one of the index
constexpr uint64_t kTokenizerBytesPerId = 24;
constexpr uint64_t kFolderOverheadBytes = uint64_t{1} << 18;

// The files' tensors in checkpoint order and, beside each, the rule of its values.
struct TensorPlan {
  TensorTable tensors;
  std::vector<ValueRule> rules;
  uint64_t total_bytes = 0;
};

class PlanBuilder {
 public:
  explicit PlanBuilder(const ModelConfig& config) : config_(config) {}

  Result<TensorPlan> build() {
    for_each_expected_tensor(config_, [&](const ExpectedTensor& tensor) { add_expected(tensor); });
    TANDEM_RETURN_IF_ERROR(status_);
    return std::move(plan_);
  }

 private:
  void add_expected(const ExpectedTensor& tensor) {
    const ValueRule rule = init_rule(config_, tensor);
    if (tensor.released != ReleasedForm::kMxfp4) {
      add(tensor.name, tensor.released == ReleasedForm::kF32 ? DType::kF32 : DType::kBF16, tensor.shape, rule);
      return;
    }
    const int64_t rows = tensor.shape[0];
    const int64_t cols = tensor.shape[1];
    add(cat(tensor.name, "_packed"), DType::kU8, std::array{rows, cols / 2}, {ValueKind::kMxfp4Codes, 0.f, 1.f, -1});
    add(cat(tensor.name, "_scale"), DType::kU8, std::array{rows, cols / 32},
        {ValueKind::kMxfp4Scales, 0.f, rule.spread, -1});
  }

  void add(std::string_view name, DType dtype, std::span<const int64_t> shape, const ValueRule& rule) {
    const auto bytes = tensor_num_bytes(dtype, shape);
    if (!status_.is_ok()) return;
    if (!bytes || *bytes > uint64_t{1} << 62 || plan_.total_bytes > uint64_t{1} << 62) {
      status_ = Status::invalid(cat(name, ": the configuration makes this checkpoint larger than 2^62 bytes"));
      return;
    }
    plan_.tensors.add(name, dtype, shape, 0, 0);
    plan_.rules.push_back(rule);
    plan_.total_bytes += *bytes;
  }

  const ModelConfig& config_;
  TensorPlan plan_;
  Status status_;
};

// One MiB of one tensor: the unit of work of the pool.
struct Piece {
  size_t tensor = 0;    // of the shard
  uint64_t offset = 0;  // bytes
  uint64_t num_bytes = 0;
};

bool is_cancelled(const InitOptions& options) { return options.cancel != nullptr && options.cancel->load(); }

class ShardFiller {
 public:
  ShardFiller(const TensorPlan& plan, const InitOptions& options, ThreadPool& pool, InitProgress progress)
      : plan_(plan), options_(options), pool_(pool), progress_(progress) {
    buffers_.resize(static_cast<size_t>(pool.num_threads()));
    for (auto& buffer : buffers_) buffer.resize(kPieceBytes);
  }

  Status fill(const PlannedShard& shard, SafetensorsWriter& writer) {
    std::vector<Piece> pieces;
    for (int64_t i = 0; i < shard.count; ++i) {
      const uint64_t bytes = plan_.tensors.entry(shard.first + i).num_bytes;
      for (uint64_t offset = 0; offset < bytes; offset += kPieceBytes) {
        pieces.push_back({static_cast<size_t>(i), offset, std::min(kPieceBytes, bytes - offset)});
      }
    }
    pool_.parallel_for(static_cast<int64_t>(pieces.size()), [&](int64_t task, int thread) {
      if (failed_.load(std::memory_order_relaxed)) return;
      if (is_cancelled(options_)) return note(Status(StatusCode::kCancelled, "interrupted: nothing was written"));
      const Piece& piece = pieces[static_cast<size_t>(task)];
      note(fill_piece(shard, piece, writer, buffers_[static_cast<size_t>(thread)]));
      const uint64_t done = done_bytes_.fetch_add(piece.num_bytes) + piece.num_bytes;
      if (thread == 0) progress_(done, plan_.total_bytes);
    });
    return status_;
  }

 private:
  Status fill_piece(const PlannedShard& shard, const Piece& piece, SafetensorsWriter& writer,
                    std::vector<std::byte>& buffer) const {
    const int64_t i = shard.first + static_cast<int64_t>(piece.tensor);
    const TensorEntry entry = plan_.tensors.entry(i);
    const std::span<std::byte> out(buffer.data(), piece.num_bytes);
    fill_random(plan_.rules[static_cast<size_t>(i)], entry.dtype, random_stream(options_.seed, entry.name),
                piece.offset / static_cast<uint64_t>(dtype_size(entry.dtype)), out);
    return writer.write(piece.tensor, piece.offset, out);
  }

  void note(Status status) {
    if (status.is_ok()) return;
    const std::lock_guard lock(mu_);
    if (!failed_.exchange(true)) status_ = std::move(status);
  }

  const TensorPlan& plan_;
  const InitOptions& options_;
  ThreadPool& pool_;
  InitProgress progress_;
  std::vector<std::vector<std::byte>> buffers_;  // one a thread
  std::atomic<uint64_t> done_bytes_{0};
  std::atomic<bool> failed_{false};
  std::mutex mu_;
  Status status_;  // guarded by mu_: the first failure
};

std::vector<TensorSpec> specs_of(const TensorTable& tensors, const PlannedShard& shard) {
  std::vector<TensorSpec> specs;
  specs.reserve(static_cast<size_t>(shard.count));
  for (int64_t i = shard.first; i < shard.first + shard.count; ++i) {
    const TensorEntry entry = tensors.entry(i);
    specs.push_back({entry.name, entry.dtype, entry.shape});
  }
  return specs;
}

Status write_sparse_shard(AtomicFile& file, std::span<const TensorSpec> specs) {
  auto layout = layout_safetensors(specs);
  if (!layout.is_ok()) return layout.status();
  TANDEM_RETURN_IF_ERROR(file.resize(layout.value().file_bytes));
  TANDEM_RETURN_IF_ERROR(file.write_at(0, std::as_bytes(std::span(layout.value().front))));
  return file.finish();
}

Status write_shards(const TensorPlan& plan, const std::vector<PlannedShard>& shards, const InitOptions& options,
                    OutputFolder& folder, ThreadPool& pool, InitProgress progress) {
  ShardFiller filler(plan, options, pool, progress);
  for (const PlannedShard& shard : shards) {
    auto file = folder.create_file(shard.name);
    if (!file.is_ok()) return file.status();
    const std::vector<TensorSpec> specs = specs_of(plan.tensors, shard);
    if (options.headers_only) {
      TANDEM_RETURN_IF_ERROR(write_sparse_shard(*file.value(), specs));
      continue;
    }
    auto writer = SafetensorsWriter::create(*file.value(), specs);
    if (!writer.is_ok()) return writer.status();
    TANDEM_RETURN_IF_ERROR(filler.fill(shard, writer.value()));
    TANDEM_RETURN_IF_ERROR(writer.value().finish());
  }
  return Status::ok();
}

Status check_free_space(const OutputFolder& folder, const TensorPlan& plan, int64_t vocab_size) {
  const auto free_bytes = folder.free_bytes();
  if (!free_bytes.is_ok()) return free_bytes.status();
  const uint64_t needed = plan.total_bytes + static_cast<uint64_t>(plan.tensors.size()) * kFileBytesPerTensor +
                          static_cast<uint64_t>(vocab_size) * kTokenizerBytesPerId + kFolderOverheadBytes;
  if (free_bytes.value() >= needed) return Status::ok();
  return Status::exhausted(
      cat(folder.dir(), ": the checkpoint needs about ", needed, " bytes of disk, ", free_bytes.value(), " are free"));
}

bool is_shard_name(std::string_view name) {
  return name == "model.safetensors" || (name.starts_with("model-") && name.ends_with(".safetensors"));
}

// Shards of an earlier checkpoint would contradict the index, an earlier tokenizer the vocabulary.
void drop_stale_files(OutputFolder& folder, const std::vector<PlannedShard>& shards, bool has_tokenizer) {
  for (const std::string& name : folder.existing_names()) {
    const bool is_new = std::ranges::find(shards, name, &PlannedShard::name) != shards.end();
    const bool tokenizer_file =
        name == "tiktoken.model" || name == "tokenizer_config.json" || name == "generation_config.json";
    if ((is_shard_name(name) && !is_new) || (tokenizer_file && !has_tokenizer)) folder.remove_at_commit(name);
  }
}

Status write_small_files(OutputFolder& folder, const std::optional<ToyTokenizer>& tokenizer, std::string_view index,
                         std::string_view config) {
  if (tokenizer) {
    TANDEM_RETURN_IF_ERROR(folder.write_file("tiktoken.model", tokenizer->rank_file()));
    TANDEM_RETURN_IF_ERROR(folder.write_file("tokenizer_config.json", tokenizer->tokenizer_config_json()));
    TANDEM_RETURN_IF_ERROR(folder.write_file("generation_config.json", tokenizer->generation_config_json()));
  }
  TANDEM_RETURN_IF_ERROR(folder.write_file(kIndexFileName, index));
  return folder.write_file("config.json", config);  // last: what a reader looks for first
}

}  // namespace

Result<InitReport> init_random_checkpoint(std::string_view config_json, std::string_view origin,
                                          const std::string& output_dir, const InitOptions& options, ThreadPool& pool,
                                          InitProgress progress) {
  const auto config = parse_model_config(config_json, origin);
  if (!config.is_ok()) return config.status();
  const std::optional<ToyTokenizer> tokenizer = make_toy_tokenizer(config.value().vocab_size);
  const auto written_config = config_with_token_ids(config_json, config.value().vocab_size, tokenizer);
  if (!written_config.is_ok()) return Status::invalid(cat(origin, ": ", written_config.status().message()));
  const auto plan = PlanBuilder(config.value()).build();
  if (!plan.is_ok()) return Status::invalid(cat(origin, ": ", plan.status().message()));
  const uint64_t shard_bytes =
      options.shard_bytes.value_or(std::max(kDefaultShardBytes, plan.value().total_bytes / kDefaultMaxShards));
  const std::vector<PlannedShard> shards = plan_shards(plan.value().tensors, shard_bytes);

  auto folder = OutputFolder::create(
      output_dir, options.overwrite ? OutputFolder::Existing::kOverwrite : OutputFolder::Existing::kRefuse);
  if (!folder.is_ok()) return folder.status();
  OutputFolder& output = folder.value();
  if (!options.headers_only) TANDEM_RETURN_IF_ERROR(check_free_space(output, plan.value(), config.value().vocab_size));
  drop_stale_files(output, shards, tokenizer.has_value());
  TANDEM_RETURN_IF_ERROR(write_shards(plan.value(), shards, options, output, pool, progress));
  TANDEM_RETURN_IF_ERROR(
      write_small_files(output, tokenizer, shard_index_json(plan.value().tensors, shards), written_config.value()));
  TANDEM_RETURN_IF_ERROR(output.commit());

  InitReport report;
  report.num_tensors = plan.value().tensors.size();
  report.tensor_bytes = plan.value().total_bytes;
  report.num_shards = static_cast<int64_t>(shards.size());
  report.vocab_size = config.value().vocab_size;
  report.has_tokenizer = tokenizer.has_value();
  return report;
}

}  // namespace tandem

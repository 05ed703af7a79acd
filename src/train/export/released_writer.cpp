#include "train/export/released_writer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/cat.h"
#include "tensor/mxfp4.h"
#include "train/modules/held_tensors.h"
#include "weights/shard_index.h"

namespace tandem::train {
namespace {

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr uint64_t kFileBytesPerTensor = 512;  // an entry of the header and one of the index, rounded up

bool is_shard_name(std::string_view name) {
  return name == kSingleFile || (name.starts_with("model-") && name.ends_with(".safetensors"));
}

DType plain_dtype(const ExpectedTensor& tensor, bool trunk_f32) {
  return trunk_f32 || tensor.released == ReleasedForm::kF32 ? DType::kF32 : DType::kBF16;
}

Status not_finite(const ExpectedTensor& tensor, size_t element, float value, std::string_view where) {
  return Status::non_finite(
      cat(tensor.name, " element ", element, where, " is ", value, ", expected a finite number: nothing was exported"));
}

Status check_finite(const ExpectedTensor& tensor, std::span<const float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) return not_finite(tensor, i, values[i], "");
  }
  return Status::ok();
}

}  // namespace

Result<ReleasedWriter> ReleasedWriter::create(const ModelConfig& config, const std::string& output_dir,
                                              const ReleasedOptions& options) {
  if (config.vision) {
    return Status::unsupported(
        "export: the configuration has a vision tower, whose tensors are not trained: expected a text model");
  }
  auto folder = OutputFolder::create(
      output_dir, options.overwrite ? OutputFolder::Existing::kOverwrite : OutputFolder::Existing::kRefuse);
  if (!folder.is_ok()) return folder.status();
  ReleasedWriter writer(std::move(folder).value());
  writer.options_ = options;
  TANDEM_RETURN_IF_ERROR(writer.plan(config));
  TANDEM_RETURN_IF_ERROR(writer.check_free_space());
  writer.drop_stale_files();
  return writer;
}

Status ReleasedWriter::plan(const ModelConfig& config) {
  Status status;
  const auto add_file_tensor = [&](std::string_view name, DType dtype, std::span<const int64_t> shape) {
    const auto bytes = tensor_num_bytes(dtype, shape);
    if (!bytes || *bytes > uint64_t{1} << 62 || tensor_bytes_ > uint64_t{1} << 62) {
      status = Status::invalid(cat(name, ": the checkpoint would be larger than 2^62 bytes"));
      return;
    }
    tensors_.add(name, dtype, shape, 0, 0);
    tensor_bytes_ += *bytes;
  };
  for_each_expected_tensor(config, [&](const ExpectedTensor& tensor) {
    if (!is_held(config, tensor) || !status.is_ok()) return;
    num_parameters_ += tensor.role == TensorRole::kKdaALog ? config.kda_num_heads : tensor.num_elements();
    if (tensor.released != ReleasedForm::kMxfp4) {
      add_file_tensor(tensor.name, plain_dtype(tensor, options_.trunk_f32), tensor.shape);
      return;
    }
    const int64_t rows = tensor.shape[0];
    const int64_t cols = tensor.shape[1];
    add_file_tensor(cat(tensor.name, "_packed"), DType::kU8, std::array{rows, cols / 2});
    add_file_tensor(cat(tensor.name, "_scale"), DType::kU8, std::array{rows, cols / kMxGroup});
  });
  TANDEM_RETURN_IF_ERROR(status);
  shards_ = plan_shards(tensors_, options_.shard_bytes);
  if (shards_.size() == 1) shards_[0].name = kSingleFile;
  return Status::ok();
}

Status ReleasedWriter::check_free_space() const {
  const auto free_bytes = folder_.free_bytes();
  if (!free_bytes.is_ok()) return free_bytes.status();
  const uint64_t needed = tensor_bytes_ + static_cast<uint64_t>(tensors_.size()) * kFileBytesPerTensor;
  if (free_bytes.value() >= needed) return Status::ok();
  return Status::exhausted(
      cat(folder_.dir(), ": the checkpoint needs about ", needed, " bytes of disk, ", free_bytes.value(), " are free"));
}

// Files of an earlier checkpoint that the new ones do not replace would contradict them.
void ReleasedWriter::drop_stale_files() {
  for (const std::string& name : folder_.existing_names()) {
    const bool is_new = std::ranges::find(shards_, name, &PlannedShard::name) != shards_.end();
    if ((is_shard_name(name) && !is_new) || (name == kIndexFileName && shards_.size() == 1)) {
      folder_.remove_at_commit(name);
    }
  }
}

Status ReleasedWriter::open_shard() {
  const PlannedShard& shard = shards_[next_shard_++];
  auto file = folder_.create_file(shard.name);
  if (!file.is_ok()) return file.status();
  std::vector<TensorSpec> specs;
  specs.reserve(static_cast<size_t>(shard.count));
  for (int64_t i = shard.first; i < shard.first + shard.count; ++i) {
    const TensorEntry entry = tensors_.entry(i);
    specs.push_back({entry.name, entry.dtype, entry.shape});
  }
  auto writer = SafetensorsWriter::create(*file.value(), specs);
  if (!writer.is_ok()) return writer.status();
  writer_.emplace(std::move(writer).value());
  return Status::ok();
}

Status ReleasedWriter::put(std::span<const std::byte> bytes) {
  if (!writer_) TANDEM_RETURN_IF_ERROR(open_shard());
  const PlannedShard& shard = shards_[next_shard_ - 1];
  TANDEM_RETURN_IF_ERROR(writer_->write(static_cast<size_t>(next_tensor_ - shard.first), 0, bytes));
  if (++next_tensor_ < shard.first + shard.count) return Status::ok();
  TANDEM_RETURN_IF_ERROR(writer_->finish());
  writer_.reset();
  return Status::ok();
}

Status ReleasedWriter::add_mxfp4(const ExpectedTensor& tensor, std::span<const float> values) {
  const size_t num_groups = values.size() / kMxGroup;
  bytes_.resize(num_groups * (kMxGroup / 2 + 1));
  auto* packed = reinterpret_cast<uint8_t*>(bytes_.data());
  uint8_t* scales = packed + num_groups * (kMxGroup / 2);
  for (size_t g = 0; g < num_groups; ++g) {
    mxfp4_quantize_group(std::span<const float, kMxGroup>(values.data() + g * kMxGroup, kMxGroup),
                         std::span<uint8_t, kMxGroup / 2>(packed + g * (kMxGroup / 2), kMxGroup / 2), scales[g]);
  }
  TANDEM_CHECK(tensor.shape[1] % kMxGroup == 0, "a row of an MXFP4 matrix is whole groups");
  const std::span<const std::byte> all(bytes_);
  TANDEM_RETURN_IF_ERROR(put(all.first(num_groups * (kMxGroup / 2))));
  return put(all.subspan(num_groups * (kMxGroup / 2)));
}

Status ReleasedWriter::add(const ExpectedTensor& tensor, std::span<const float> values) {
  TANDEM_CHECK(next_tensor_ < tensors_.size() && tensors_.name(next_tensor_).starts_with(tensor.name),
               "tensors are added in released order");
  const auto wanted = static_cast<size_t>(tensor.num_elements());
  const bool is_padded = tensor.shape_rule == ShapeRule::kALog && values.size() <= wanted;
  TANDEM_CHECK(values.size() == wanted || is_padded, "a tensor has as many elements as its shape says");
  TANDEM_RETURN_IF_ERROR(check_finite(tensor, values));
  if (tensor.released == ReleasedForm::kMxfp4) return add_mxfp4(tensor, values);
  const DType dtype = plain_dtype(tensor, options_.trunk_f32);
  bytes_.assign(wanted * static_cast<size_t>(dtype_size(dtype)), std::byte{0});
  if (dtype == DType::kF32) {
    std::memcpy(bytes_.data(), values.data(), values.size_bytes());
    return put(bytes_);
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const bf16 rounded = to_bf16(values[i]);
    if (!std::isfinite(to_f32(rounded))) return not_finite(tensor, i, values[i], ", rounded to BF16, is infinite: it");
    std::memcpy(bytes_.data() + i * sizeof rounded, &rounded, sizeof rounded);
  }
  return put(bytes_);
}

Status ReleasedWriter::commit() {
  TANDEM_CHECK(next_tensor_ == tensors_.size(), "every tensor was added");
  if (shards_.size() > 1) {
    TANDEM_RETURN_IF_ERROR(folder_.write_file(kIndexFileName, shard_index_json(tensors_, shards_)));
  }
  return folder_.commit();
}

}  // namespace tandem::train

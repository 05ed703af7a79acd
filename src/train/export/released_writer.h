// train/export/released_writer.h: float tensors, one after the other, into a checkpoint folder of the released format:
// released names, types and padding, one `model.safetensors` or shards under an index. No torch in here.
//
//   Trunk: BF16, rounded to nearest even, and F32 where released; or F32 throughout. Routed experts that the
//   configuration declares as MXFP4: packed codes and E8M0 scales as mxfp4_quantize_group() gives them. A_log is padded
//   with zeros to its released shape. The files appear together at commit(); without it nothing stays.
//   Threading: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "config/model_config.h"
#include "weights/output_folder.h"
#include "weights/safetensors_writer.h"
#include "weights/shard_plan.h"
#include "weights/tensor_names.h"
#include "weights/tensor_table.h"

namespace tandem::train {

struct ReleasedOptions {
  bool trunk_f32 = false;  // every tensor that is not MXFP4 as F32: for comparing without rounding
  bool overwrite = false;  // accept an output folder with files in it
  uint64_t shard_bytes = 5'000'000'000;
};

class ReleasedWriter {
 public:
  // kUnsupported for a configuration with a vision tower: its tensors are not trained here.
  static Result<ReleasedWriter> create(const ModelConfig& config, const std::string& output_dir,
                                       const ReleasedOptions& options);

  // The next text tensor in released order: its logical elements, of A_log the valid ones. kNonFinite names the first
  // that is not finite, or that does not stay so in the stored type.
  Status add(const ExpectedTensor& tensor, std::span<const float> values);
  // Another file of the folder; config.json is the last one to write.
  Status write_file(std::string_view name, std::string_view text) { return folder_.write_file(name, text); }
  // After the last tensor: the index, and everything under its final name.
  Status commit();

  int64_t num_tensors() const { return tensors_.size(); }  // in the files: an MXFP4 matrix is two
  int64_t num_shards() const { return static_cast<int64_t>(shards_.size()); }
  int64_t num_parameters() const { return num_parameters_; }  // logical; of A_log the valid ones
  uint64_t tensor_bytes() const { return tensor_bytes_; }

 private:
  explicit ReleasedWriter(OutputFolder folder) : folder_(std::move(folder)) {}
  Status plan(const ModelConfig& config);
  Status check_free_space() const;
  void drop_stale_files();
  Status put(std::span<const std::byte> bytes);  // the next tensor of the files
  Status open_shard();
  Status add_mxfp4(const ExpectedTensor& tensor, std::span<const float> values);

  OutputFolder folder_;
  ReleasedOptions options_;
  TensorTable tensors_;
  std::vector<PlannedShard> shards_;
  int64_t num_parameters_ = 0;
  uint64_t tensor_bytes_ = 0;

  int64_t next_tensor_ = 0;
  size_t next_shard_ = 0;
  std::optional<SafetensorsWriter> writer_;  // of shard next_shard_ − 1
  std::vector<std::byte> bytes_;
};

}  // namespace tandem::train

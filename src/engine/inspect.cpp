#include "engine/inspect.h"

#include <filesystem>

#include "weights/checkpoint.h"
#include "weights/tensor_names.h"

namespace tandem {
namespace {

DType released_dtype(ReleasedForm form) {
  switch (form) {
    case ReleasedForm::kBf16: return DType::kBF16;
    case ReleasedForm::kF32: return DType::kF32;
    case ReleasedForm::kMxfp4: return DType::kU8;
  }
  return DType::kBF16;
}

void add(TensorTotals& totals, const ExpectedTensor& tensor) {
  totals.tensors += tensor.released_tensors();
  totals.parameters += tensor.num_elements();
  totals.bytes += static_cast<uint64_t>(tensor.released_bytes());
}

// The report of a checkpoint that holds exactly what was released for this shape.
CheckpointReport released_report(const ModelConfig& config) {
  CheckpointReport report;
  for_each_expected_tensor(config, [&report](const ExpectedTensor& tensor) {
    const bool mtp = tensor.group == TensorGroup::kMtp;
    add(tensor.run ? report.text : (mtp ? report.mtp : report.vision), tensor);
    add(report.by_group[static_cast<size_t>(tensor.group)], tensor);
    TensorTotals& dtype = report.by_dtype[static_cast<size_t>(released_dtype(tensor.released))];
    dtype.tensors += tensor.released_tensors();
    dtype.bytes += static_cast<uint64_t>(tensor.released_bytes());
  });
  return report;
}

}  // namespace

Result<InspectReport> inspect_model(const std::string& model) {
  std::error_code error;
  const bool bare_config = std::filesystem::is_regular_file(model, error);
  auto config = bare_config ? load_model_config_file(model) : load_model_config(model);
  if (!config.is_ok()) return config.status();
  InspectReport report;
  report.model = model;
  report.config = std::move(config).value();
  report.cache = make_cache_layout(report.config, DType::kF32);
  if (bare_config) {
    report.tensors = released_report(report.config);
    for (const TensorTotals& totals : report.tensors.by_group) {
      report.num_tensors += totals.tensors;
      report.total_bytes += totals.bytes;
    }
    return report;
  }
  auto checkpoint = Checkpoint::open(model, Checkpoint::Mode::kHeadersOnly);
  if (!checkpoint.is_ok()) return checkpoint.status();
  report.has_checkpoint = true;
  report.num_shards = checkpoint.value().num_shards();
  report.num_tensors = checkpoint.value().num_tensors();
  report.total_bytes = checkpoint.value().total_bytes();
  report.tensors = check_checkpoint(checkpoint.value(), report.config);
  return report;
}

}  // namespace tandem

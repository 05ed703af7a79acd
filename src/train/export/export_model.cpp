#include "train/export/export_model.h"

#include <ATen/ATen.h>

#include "base/cat.h"
#include "base/read_file.h"

namespace tandem::train {
namespace {

std::string describe(const ExpectedTensor& tensor) {
  std::string text = cat(tensor.name, " [");
  for (size_t i = 0; i < tensor.shape.size(); ++i) text += cat(i == 0 ? "" : ", ", tensor.shape[i]);
  return text + "]";
}

// The configuration to be written must mean the tensors that will stand beside it.
Status check_same_tensors(const ModelConfig& written, const ModelConfig& held) {
  std::vector<std::string> wanted;
  for_each_expected_tensor(written, [&](const ExpectedTensor& tensor) {
    if (is_held(written, tensor)) wanted.push_back(describe(tensor));
  });
  size_t next = 0;
  Status status;
  for_each_expected_tensor(held, [&](const ExpectedTensor& tensor) {
    if (!is_held(held, tensor) || !status.is_ok()) return;
    const std::string found = describe(tensor);
    if (next < wanted.size() && wanted[next] == found) {
      ++next;
      return;
    }
    status = Status::invalid(cat("export: config.json describes another model: expected ",
                                 next < wanted.size() ? wanted[next] : "no further tensor", ", the model has ", found));
  });
  if (status.is_ok() && next < wanted.size()) {
    return Status::invalid(cat("export: config.json describes another model: it expects ", wanted[next],
                               ", which the model does not have"));
  }
  return status;
}

}  // namespace

Result<ExportReport> export_model(const TrainModel& model, const ExportOptions& options) {
  const auto config = parse_model_config(options.config_json, "config.json");
  if (!config.is_ok()) return config.status();
  TANDEM_RETURN_IF_ERROR(check_same_tensors(config.value(), model.config()));
  auto created = ReleasedWriter::create(config.value(), options.output_dir, options.format);
  if (!created.is_ok()) return created.status();
  ReleasedWriter& writer = created.value();

  // The written configuration decides how a tensor is stored: both walks have the same tensors in the same order.
  std::vector<ReleasedForm> forms;
  for_each_expected_tensor(config.value(), [&](const ExpectedTensor& tensor) {
    if (is_held(config.value(), tensor)) forms.push_back(tensor.released);
  });
  size_t next = 0;
  Status status;
  model.for_each_released([&](const ExpectedTensor& held, const at::Tensor& value) {
    if (!status.is_ok()) return;
    ExpectedTensor tensor = held;
    tensor.released = forms[next++];
    const at::Tensor values = value.to(at::kCPU, at::kFloat).contiguous();
    status = writer.add(tensor, {values.data_ptr<float>(), static_cast<size_t>(values.numel())});
  });
  TANDEM_RETURN_IF_ERROR(status);
  for (const auto& [name, content] : options.files) TANDEM_RETURN_IF_ERROR(writer.write_file(name, content));
  TANDEM_RETURN_IF_ERROR(writer.write_file("config.json", options.config_json));
  TANDEM_RETURN_IF_ERROR(writer.commit());
  return ExportReport{writer.num_parameters(), writer.num_tensors(), writer.num_shards(), writer.tensor_bytes()};
}

Result<std::vector<std::pair<std::string, std::string>>> read_companion_files(const std::string& dir) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const char* name : {"tiktoken.model", "tokenizer_config.json", "generation_config.json"}) {
    auto content = read_file(cat(dir, "/", name), "a file of a model folder");
    if (content.is_ok()) {
      files.emplace_back(name, std::move(content).value());
    } else if (content.status().code() != StatusCode::kNotFound) {
      return content.status();
    }
  }
  return files;
}

}  // namespace tandem::train

#include "weights/safetensors_writer.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/cat.h"
#include "base/check.h"
#include "base/utf8.h"
#include "weights/safetensors_header.h"

namespace tandem {
namespace {

constexpr uint64_t kHeaderAlignment = 8;

Status check_specs(std::span<const TensorSpec> tensors) {
  for (const TensorSpec& tensor : tensors) {
    if (tensor.name.empty() || tensor.name == "__metadata__") {
      return Status::invalid(cat("\"", tensor.name, "\" cannot be the name of a tensor"));
    }
    if (!is_valid_utf8(tensor.name)) {
      return Status::invalid("a tensor's name is not UTF-8");
    }
    const bool negative = std::ranges::any_of(tensor.shape, [](int64_t extent) { return extent < 0; });
    if (negative || !tensor_num_bytes(tensor.dtype, tensor.shape)) {
      return Status::invalid(cat(tensor.name, ": its shape has a negative extent or exceeds 2^63 bytes"));
    }
  }
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorSpec& tensor : tensors) names.push_back(tensor.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) return Status::invalid(cat(*twice, ": two tensors have this name"));
  return Status::ok();
}

void append_entry(std::string& json, const TensorSpec& tensor, uint64_t begin, uint64_t end) {
  append_json_string(json, tensor.name);
  json += cat(":{\"dtype\":\"", dtype_name(tensor.dtype), "\",\"shape\":[");
  for (size_t axis = 0; axis < tensor.shape.size(); ++axis) json += cat(axis == 0 ? "" : ",", tensor.shape[axis]);
  json += cat("],\"data_offsets\":[", begin, ",", end, "]}");
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (code < 0x20) {
      out += cat("\\u00", kHex[code >> 4], kHex[code & 15]);
    } else {
      out += c;
    }
  }
  out += '"';
}

Result<SafetensorsLayout> layout_safetensors(std::span<const TensorSpec> tensors) {
  TANDEM_RETURN_IF_ERROR(check_specs(tensors));
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) { return dtype_size(tensors[i].dtype); });

  SafetensorsLayout layout;
  layout.begin.resize(tensors.size());
  layout.num_bytes.resize(tensors.size());
  std::string json = "{";
  uint64_t data_bytes = 0;
  for (const size_t i : order) {
    const uint64_t bytes = tensor_num_bytes(tensors[i].dtype, tensors[i].shape).value_or(0);
    if (bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) - kMaxSafetensorsHeaderBytes - data_bytes) {
      return Status::invalid(cat(tensors[i].name, ": the file would exceed 2^63 bytes"));
    }
    if (json.size() > 1) json += ',';
    append_entry(json, tensors[i], data_bytes, data_bytes + bytes);
    layout.begin[i] = data_bytes;
    layout.num_bytes[i] = bytes;
    data_bytes += bytes;
  }
  json += '}';
  json.resize((json.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  if (json.size() > kMaxSafetensorsHeaderBytes) {
    return Status::invalid(cat("the names and shapes of ", tensors.size(), " tensors take ", json.size(),
                               " bytes, a header has at most ", kMaxSafetensorsHeaderBytes));
  }
  for (size_t i = 0; i < kSafetensorsPrefixBytes; ++i) {
    layout.front += static_cast<char>(static_cast<uint64_t>(json.size()) >> (8 * i) & 0xff);
  }
  layout.front += json;
  for (uint64_t& begin : layout.begin) begin += layout.front.size();
  layout.file_bytes = layout.front.size() + data_bytes;
  return layout;
}

SafetensorsWriter::SafetensorsWriter(AtomicFile& file, SafetensorsLayout layout)
    : file_(&file), layout_(std::move(layout)), written_bytes_(std::make_unique<std::atomic<uint64_t>>(0)) {}

Result<SafetensorsWriter> SafetensorsWriter::create(AtomicFile& file, std::span<const TensorSpec> tensors) {
  auto layout = layout_safetensors(tensors);
  if (!layout.is_ok()) return Status(layout.status().code(), cat(file.path(), ": ", layout.status().message()));
  SafetensorsWriter writer(file, std::move(layout).value());
  TANDEM_RETURN_IF_ERROR(file.reserve(writer.layout_.file_bytes));
  TANDEM_RETURN_IF_ERROR(file.write_at(0, std::as_bytes(std::span(writer.layout_.front))));
  return writer;
}

Status SafetensorsWriter::write(size_t tensor, uint64_t offset, std::span<const std::byte> bytes) {
  TANDEM_CHECK(offset <= layout_.num_bytes[tensor] && bytes.size() <= layout_.num_bytes[tensor] - offset,
               "a write stays inside its tensor");
  TANDEM_RETURN_IF_ERROR(file_->write_at(layout_.begin[tensor] + offset, bytes));
  written_bytes_->fetch_add(bytes.size(), std::memory_order_relaxed);
  return Status::ok();
}

Status SafetensorsWriter::finish() {
  const uint64_t expected = layout_.file_bytes - layout_.front.size();
  if (written_bytes_->load() != expected) {
    return Status::failed_precondition(
        cat(file_->path(), ": its tensors have ", expected, " bytes, ", written_bytes_->load(), " were written"));
  }
  return file_->finish();
}

Status write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const TensorToWrite& tensor : tensors) {
    specs.push_back(tensor.spec);
    const uint64_t expected = tensor_num_bytes(tensor.spec.dtype, tensor.spec.shape).value_or(0);
    if (tensor.bytes.size() != expected) {
      return Status::invalid(
          cat(path, ": ", tensor.spec.name, " needs ", expected, " bytes, found ", tensor.bytes.size()));
    }
  }
  auto file = AtomicFile::create(path);
  if (!file.is_ok()) return file.status();
  auto writer = SafetensorsWriter::create(file.value(), specs);
  if (!writer.is_ok()) return writer.status();
  for (size_t i = 0; i < tensors.size(); ++i) TANDEM_RETURN_IF_ERROR(writer.value().write(i, 0, tensors[i].bytes));
  TANDEM_RETURN_IF_ERROR(writer.value().finish());
  return file.value().publish();
}

}  // namespace tandem

#include "weights/checkpoint_check.h"

#include <algorithm>

#include "base/cat.h"
#include "tensor/mxfp4.h"
#include "weights/fault_list.h"

namespace tandem {
namespace {

constexpr std::string_view kLongLayers = "language_model.model.layers.";
constexpr std::string_view kShortLayers = "language_model.layers.";

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (const int64_t extent : shape) text += cat(text.size() > 1 ? ", " : "", extent);
  return text + ']';
}

int64_t num_elements(std::span<const int64_t> shape) {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

bool is_float(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32; }

// Finds tensors by name and remembers which were asked for. Names come nearly in the order of the file, so the
// neighbour of the last hit is tried before a binary search.
class Lookup {
 public:
  explicit Lookup(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint), consumed_(static_cast<size_t>(checkpoint.num_tensors()), false) {}

  std::optional<TensorEntry> take(std::string_view name) {
    std::optional<int64_t> index = index_of(name);
    if (!index.has_value() && name.starts_with(kLongLayers)) {
      alias_ = kShortLayers;
      alias_ += name.substr(kLongLayers.size());
      index = index_of(alias_);
    }
    if (!index.has_value()) return std::nullopt;
    consumed_[static_cast<size_t>(*index)] = true;
    next_ = *index + 1;
    return checkpoint_.tensor(*index);
  }
  bool is_consumed(int64_t i) const { return consumed_[static_cast<size_t>(i)]; }

 private:
  std::optional<int64_t> index_of(std::string_view name) const {
    const int64_t count = checkpoint_.num_tensors();
    if (next_ < count && checkpoint_.tensor(next_).name == name) return next_;
    int64_t low = 0;
    int64_t high = count;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (checkpoint_.tensor(middle).name < name) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low < count && checkpoint_.tensor(low).name == name) return low;
    return std::nullopt;
  }

  const Checkpoint& checkpoint_;
  std::vector<bool> consumed_;
  std::string alias_;
  int64_t next_ = 0;
};

class Check {
 public:
  Check(const Checkpoint& checkpoint, const ModelConfig& config, StoredTensorVisitor visit)
      : checkpoint_(checkpoint), config_(config), visit_(visit), lookup_(checkpoint) {}

  CheckpointReport run() {
    for_each_expected_tensor(config_, [this](const ExpectedTensor& expected) { check(expected); });
    for (int64_t i = 0; i < checkpoint_.num_tensors(); ++i) {
      const TensorEntry entry = checkpoint_.tensor(i);
      TensorTotals& totals = report_.by_dtype[static_cast<size_t>(entry.dtype)];
      totals.tensors += 1;
      totals.bytes += entry.num_bytes;
      if (!lookup_.is_consumed(i)) {
        report_.unknown.push_back({std::string(entry.name), std::string(checkpoint_.shard_name(entry.shard))});
      }
    }
    return std::move(report_);
  }

 private:
  void check(const ExpectedTensor& expected) {
    const std::optional<TensorEntry> plain = lookup_.take(expected.name);
    if (!expected.quantisable) {
      if (!plain.has_value()) return missing(expected);
      return accept(expected, {*plain, std::nullopt});
    }
    const std::optional<TensorEntry> packed = take_with_suffix(expected.name, "_packed");
    const std::optional<TensorEntry> scale = take_with_suffix(expected.name, "_scale");
    if (plain.has_value()) {
      if (packed.has_value() || scale.has_value()) {
        return fault(*plain, cat("is stored plain and also as ", (packed ? *packed : *scale).name));
      }
      return accept(expected, {*plain, std::nullopt});
    }
    if (!packed.has_value() && !scale.has_value()) return missing(expected);
    if (!packed.has_value()) return fault(*scale, cat("has no ", expected.name, "_packed beside it"));
    if (!scale.has_value()) return fault(*packed, cat("has no ", expected.name, "_scale beside it"));
    accept(expected, {*packed, *scale});
  }

  std::optional<TensorEntry> take_with_suffix(std::string_view name, std::string_view suffix) {
    suffixed_ = name;
    suffixed_ += suffix;
    return lookup_.take(suffixed_);
  }

  void missing(const ExpectedTensor& expected) {
    if (expected.optional) return;
    if (expected.released == ReleasedForm::kMxfp4) {
      report_.missing.push_back(cat(expected.name, "_packed"));
      report_.missing.push_back(cat(expected.name, "_scale"));
    } else {
      report_.missing.emplace_back(expected.name);
    }
  }

  void fault(const TensorEntry& entry, std::string_view what) {
    report_.misshapen.push_back(cat(entry.name, " (", checkpoint_.shard_name(entry.shard), ") ", what));
  }

  bool has_shape(const TensorEntry& entry, std::span<const int64_t> shape) {
    if (std::ranges::equal(entry.shape, shape)) return true;
    fault(entry, cat("has shape ", shape_text(entry.shape), ", expected ", shape_text(shape)));
    return false;
  }
  bool has_type(const TensorEntry& entry, bool good, std::string_view expected) {
    if (good) return true;
    fault(entry, cat("is ", dtype_name(entry.dtype), ", expected ", expected));
    return false;
  }

  bool is_sound(const ExpectedTensor& expected, const StoredTensor& stored) {
    const TensorEntry& weight = stored.weight;
    if (stored.scale.has_value()) {
      const std::array<int64_t, 2> packed{expected.shape[0], expected.shape[1] / 2};
      const std::array<int64_t, 2> scale{expected.shape[0], expected.shape[1] / kMxGroup};
      // One after the other, not with &&: both of a pair are reported.
      const bool packed_shape = has_shape(weight, packed);
      const bool scale_shape = has_shape(*stored.scale, scale);
      const bool packed_type = has_type(weight, weight.dtype == DType::kU8, "U8");
      const bool scale_type = has_type(*stored.scale, stored.scale->dtype == DType::kU8, "U8");
      const bool shapes = packed_shape && scale_shape;
      const bool types = packed_type && scale_type;
      return shapes && types;
    }
    const bool type = has_type(weight, is_float(weight.dtype), "BF16, F16 or F32");
    if (expected.shape_rule == ShapeRule::kExact) return has_shape(weight, expected.shape) && type;
    if (num_elements(weight.shape) < config_.kda_num_heads) {
      fault(weight, cat("has shape ", shape_text(weight.shape),
                        ", expected at least num_heads = ", config_.kda_num_heads, " elements"));
      return false;
    }
    return type;
  }

  void accept(const ExpectedTensor& expected, const StoredTensor& stored) {
    count(expected, stored);
    if (is_sound(expected, stored)) visit_(expected, stored, report_.misshapen);
  }

  void count(const ExpectedTensor& expected, const StoredTensor& stored) {
    TensorTotals one;
    one.tensors = stored.scale.has_value() ? 2 : 1;
    one.parameters = num_elements(stored.weight.shape) * (stored.scale.has_value() ? 2 : 1);
    one.bytes = stored.weight.num_bytes + (stored.scale.has_value() ? stored.scale->num_bytes : 0);
    if (stored.scale.has_value()) report_.scale_bytes += stored.scale->num_bytes;
    TensorTotals& part =
        expected.run ? report_.text : (expected.group == TensorGroup::kMtp ? report_.mtp : report_.vision);
    for (TensorTotals* totals : {&part, &report_.by_group[static_cast<size_t>(expected.group)]}) {
      totals->tensors += one.tensors;
      totals->parameters += one.parameters;
      totals->bytes += one.bytes;
    }
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  StoredTensorVisitor visit_;
  Lookup lookup_;
  CheckpointReport report_;
  std::string suffixed_;
};

// "<kind> (<n>):" and a line for each of the first names.
template <class Items, class Line>
void list(std::string& text, std::string_view kind, const Items& items, Line line) {
  if (items.empty()) return;
  text += cat('\n', kind, " (", items.size(), "):");
  const size_t shown = std::min(items.size(), FaultList::kMaxListed);
  for (size_t i = 0; i < shown; ++i) text += cat("\n  ", line(items[i]));
  if (shown < items.size()) text += cat("\n  … and ", items.size() - shown, " more");
}

bool is_packed_name(std::string_view name) {
  return name.ends_with(".weight_packed") || name.ends_with(".weight_scale");
}

}  // namespace

Status CheckpointReport::to_status(std::string_view checkpoint_dir) const {
  if (is_clean()) return Status::ok();
  std::string message = cat(checkpoint_dir, ": the tensors do not fit config.json: ", missing.size(), " missing, ",
                            unknown.size(), " unknown, ", misshapen.size(), " with another shape, type or content");
  list(message, "wrong", misshapen, [](const std::string& line) { return line; });
  list(message, "missing", missing, [](const std::string& name) { return name; });
  list(message, "unknown", unknown, [](const Unknown& tensor) {
    return cat(tensor.name, " (", tensor.shard, ')',
               is_packed_name(tensor.name) ? ", packed and not a routed expert of this model" : "");
  });
  return Status::invalid(std::move(message));
}

CheckpointReport check_checkpoint(const Checkpoint& checkpoint, const ModelConfig& config, StoredTensorVisitor visit) {
  return Check(checkpoint, config, visit).run();
}

CheckpointReport check_checkpoint(const Checkpoint& checkpoint, const ModelConfig& config) {
  return check_checkpoint(checkpoint, config,
                          [](const ExpectedTensor&, const StoredTensor&, std::vector<std::string>&) {});
}

}  // namespace tandem

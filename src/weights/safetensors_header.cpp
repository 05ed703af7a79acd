#include "weights/safetensors_header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "weights/json_text.h"
#include "weights/mapped_file.h"

namespace tandem {
namespace {

namespace ondemand = simdjson::ondemand;

struct Interval {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint32_t tensor = 0;  // position in the table
};

// What one entry of the header says, before it is judged.
struct EntryFields {
  std::optional<DType> dtype;
  bool has_dtype = false;
  bool has_shape = false;
  bool has_offsets = false;
  std::vector<int64_t> shape;
  std::vector<uint64_t> offsets;
};

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += cat(i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

class HeaderParser {
 public:
  HeaderParser(const HeaderPlace& place, TensorTable& table, FaultList& faults)
      : place_(place), table_(table), faults_(faults), first_(table.size()) {}

  void parse(std::span<const std::byte> json) {
    if (json.empty() || json[0] != std::byte{'{'}) {
      faults_.add(place_.shard_name, ": the header must begin with '{'");
      return;
    }
    ondemand::parser parser;
    ondemand::document document;
    ondemand::object object;
    simdjson::error_code error = parser.iterate(padded_json(json, MappedFile::kPadding)).get(document);
    if (!error) error = document.get_object().get(object);
    if (!error) error = parse_entries(object);
    const char* rest = nullptr;
    if (!error && document.current_location().get(rest) == simdjson::SUCCESS) error = simdjson::TRAILING_CONTENT;
    if (error) faults_.add(place_.shard_name, ": the header is not valid JSON: ", simdjson::error_message(error));
    json_valid_ = !error;
  }

  // The format allows neither overlap nor holes: sorted by place, each tensor begins where the one before ends.
  void check_coverage() {
    if (!json_valid_ || unknown_place_) return;
    const std::vector<Interval> intervals = sorted_intervals();
    uint64_t covered = 0;
    for (const Interval& next : intervals) {
      const std::string_view name = table_.name(next.tensor);
      if (next.begin < covered) {
        faults_.add(place_.shard_name, ": ", name, " begins at byte ", next.begin, " of the data section and overlaps ",
                    "the tensor that ends at ", covered);
      } else if (next.begin > covered) {
        faults_.add(place_.shard_name, ": bytes ", covered, " to ", next.begin, " before ", name,
                    " belong to no tensor");
      }
      covered = std::max(covered, next.end);
    }
    if (covered < place_.data_bytes) {
      faults_.add(place_.shard_name, ": ", place_.data_bytes - covered, " trailing bytes: the tensors end at ", covered,
                  ", the data section has ", place_.data_bytes);
    }
  }

 private:
  simdjson::error_code parse_entries(ondemand::object& object) {
    bool has_metadata = false;
    for (auto item : object) {
      ondemand::field field;
      if (const auto error = std::move(item).get(field)) return error;
      std::string_view name;
      if (const auto error = read_key(field, name)) return error;
      if (name == "__metadata__") {
        if (has_metadata) faults_.add(place_.shard_name, ": duplicate key __metadata__");
        has_metadata = true;
        if (const auto error = skip_metadata(field.value())) return error;
        continue;
      }
      ondemand::object entry;
      if (const auto error = field.value().get_object().get(entry)) return error;
      if (const auto error = parse_fields(name, entry)) return error;
      judge(name);
    }
    return simdjson::SUCCESS;
  }

  // Ignored, and read as the map of strings that the format makes it: skipping would accept any characters.
  static simdjson::error_code skip_metadata(ondemand::value value) {
    ondemand::object object;
    if (const auto error = value.get_object().get(object)) return error;
    for (auto item : object) {
      ondemand::field field;
      if (const auto error = std::move(item).get(field)) return error;
      std::string_view text;
      if (const auto error = field.value().get_string().get(text)) return error;
    }
    return simdjson::SUCCESS;
  }

  simdjson::error_code parse_fields(std::string_view name, ondemand::object& entry) {
    fields_.dtype.reset();
    fields_.has_dtype = fields_.has_shape = fields_.has_offsets = false;
    fields_.shape.clear();
    fields_.offsets.clear();
    faults_before_ = faults_.count();
    for (auto item : entry) {
      ondemand::field field;
      if (const auto error = std::move(item).get(field)) return error;
      std::string_view key;
      if (const auto error = read_key(field, key)) return error;
      if (const auto error = parse_field(name, key, field.value())) return error;
    }
    return simdjson::SUCCESS;
  }

  simdjson::error_code parse_field(std::string_view name, std::string_view key, ondemand::value value) {
    if (key == "dtype") {
      note_once(name, key, fields_.has_dtype);
      std::string_view text;
      if (const auto error = read_string(value, text)) return error;
      fields_.dtype = dtype_from_name(text);
      if (!fields_.dtype) faults_.add(place_.shard_name, ": ", name, " has the unknown dtype \"", text, "\"");
    } else if (key == "shape") {
      note_once(name, key, fields_.has_shape);
      fields_.shape.clear();
      ondemand::array extents;
      if (const auto error = value.get_array().get(extents)) return error;
      for (auto item : extents) {
        uint64_t extent = 0;
        if (const auto error = item.get_uint64().get(extent)) return error;
        if (extent > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return simdjson::NUMBER_OUT_OF_RANGE;
        fields_.shape.push_back(static_cast<int64_t>(extent));
      }
    } else if (key == "data_offsets") {
      note_once(name, key, fields_.has_offsets);
      fields_.offsets.clear();
      ondemand::array offsets;
      if (const auto error = value.get_array().get(offsets)) return error;
      for (auto item : offsets) {
        uint64_t offset = 0;
        if (const auto error = item.get_uint64().get(offset)) return error;
        fields_.offsets.push_back(offset);
      }
    }
    return simdjson::SUCCESS;
  }

  void note_once(std::string_view name, std::string_view key, bool& seen) {
    if (seen) faults_.add(place_.shard_name, ": ", name, " has the duplicate key ", key);
    seen = true;
  }

  void judge(std::string_view name) {
    const EntryFields& f = fields_;
    if (!f.has_dtype) faults_.add(place_.shard_name, ": ", name, " has no dtype");
    if (!f.has_shape) faults_.add(place_.shard_name, ": ", name, " has no shape");
    if (f.offsets.size() != 2) {
      faults_.add(place_.shard_name, ": ", name, " needs two data_offsets, found ", f.offsets.size());
    } else if (f.offsets[0] > f.offsets[1]) {
      faults_.add(place_.shard_name, ": ", name, " begins at byte ", f.offsets[0], " and ends before, at ",
                  f.offsets[1]);
    } else if (f.offsets[1] > place_.data_bytes) {
      faults_.add(place_.shard_name, ": ", name, " ends at byte ", f.offsets[1], " of a data section of ",
                  place_.data_bytes, " bytes (truncated file?)");
    }
    const bool placed = f.offsets.size() == 2 && f.offsets[0] <= f.offsets[1];
    unknown_place_ = unknown_place_ || !placed;
    if (f.dtype && f.has_shape && placed) judge_size(name);

    if (faults_.count() == faults_before_) {
      table_.add(name, *f.dtype, f.shape, place_.shard, f.offsets[0]);
      return;
    }
    const int64_t empty[] = {0};
    if (placed) {
      faulty_intervals_.push_back({f.offsets[0], f.offsets[1], static_cast<uint32_t>(table_.size())});
    }
    table_.add(name, DType::kU8, empty, place_.shard, 0);
  }

  void judge_size(std::string_view name) {
    const std::optional<uint64_t> expected = tensor_num_bytes(*fields_.dtype, fields_.shape);
    const uint64_t stated = fields_.offsets[1] - fields_.offsets[0];
    if (!expected) {
      faults_.add(place_.shard_name, ": ", name, " of shape ", shape_text(fields_.shape), " exceeds 2^63 bytes");
    } else if (*expected != stated) {
      faults_.add(place_.shard_name, ": ", name, " ", dtype_name(*fields_.dtype), " ", shape_text(fields_.shape),
                  " needs ", *expected, " bytes, its data_offsets span ", stated);
    }
  }

  std::vector<Interval> sorted_intervals() const {
    std::vector<Interval> intervals;
    intervals.reserve(static_cast<size_t>(table_.size() - first_));
    size_t faulty = 0;
    for (int64_t i = first_; i < table_.size(); ++i) {
      if (faulty < faulty_intervals_.size() && faulty_intervals_[faulty].tensor == i) {
        intervals.push_back(faulty_intervals_[faulty++]);
        continue;
      }
      const TensorEntry entry = table_.entry(i);
      intervals.push_back({entry.begin, entry.begin + entry.num_bytes, static_cast<uint32_t>(i)});
    }
    const auto by_place = [](const Interval& a, const Interval& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    };
    if (!std::ranges::is_sorted(intervals, by_place)) std::ranges::sort(intervals, by_place);
    return intervals;
  }

  const HeaderPlace& place_;
  TensorTable& table_;
  FaultList& faults_;
  const int64_t first_;  // of this header's tensors in the table
  EntryFields fields_;
  int64_t faults_before_ = 0;  // of the entry being read
  std::vector<Interval> faulty_intervals_;
  bool json_valid_ = false;
  bool unknown_place_ = false;  // some tensor's place is unknown: holes cannot be told
};

}  // namespace

std::optional<uint64_t> read_header_length(std::span<const std::byte> file_begin, uint64_t file_bytes,
                                           std::string_view shard_name, FaultList& faults) {
  if (file_begin.size() < kSafetensorsPrefixBytes) {
    faults.add(shard_name, ": truncated: a safetensors file has at least 8 bytes, found ", file_bytes);
    return std::nullopt;
  }
  uint64_t length = 0;
  for (size_t i = kSafetensorsPrefixBytes; i-- > 0;) length = length << 8 | static_cast<uint64_t>(file_begin[i]);
  if (length > kMaxSafetensorsHeaderBytes) {
    faults.add(shard_name, ": the header states ", length, " bytes, at most ", kMaxSafetensorsHeaderBytes,
               " are accepted");
    return std::nullopt;
  }
  if (length > file_bytes - kSafetensorsPrefixBytes) {
    faults.add(shard_name, ": truncated: the header states ", length, " bytes, the file has ",
               file_bytes - kSafetensorsPrefixBytes, " behind its length");
    return std::nullopt;
  }
  return length;
}

void parse_safetensors_header(std::span<const std::byte> json, const HeaderPlace& place, TensorTable& table,
                              FaultList& faults) {
  HeaderParser parser(place, table, faults);
  parser.parse(json);
  parser.check_coverage();
}

}  // namespace tandem

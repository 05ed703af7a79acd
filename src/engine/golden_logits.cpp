#include "engine/golden_logits.h"

#include <charconv>
#include <cstring>
#include <filesystem>

#include "base/cat.h"
#include "base/read_file.h"
#include "engine/score.h"
#include "weights/fault_list.h"
#include "weights/mapped_file.h"
#include "weights/safetensors_header.h"
#include "weights/safetensors_writer.h"

namespace tandem {
namespace {

constexpr std::string_view kLogits = ".logits";
constexpr std::string_view kIds = ".ids";
constexpr std::string_view kRoutes = ".router_idx";
constexpr std::string_view kLayer = ".layer.";

// One safetensors file of small tensors.
class SmallTensors {
 public:
  static Result<SmallTensors> open(const std::string& path) {
    Result<MappedFile> file = MappedFile::open(path);
    if (!file.is_ok()) return file.status();
    SmallTensors tensors;
    tensors.file_ = std::move(file).value();
    FaultList faults;
    const uint64_t file_bytes = tensors.file_.file_bytes();
    const auto length = read_header_length(tensors.file_.bytes(), file_bytes, path, faults);
    if (!length) return faults.to_status(path);
    tensors.data_begin_ = kSafetensorsPrefixBytes + *length;
    tensors.table_.reserve(*length);
    parse_safetensors_header(tensors.file_.bytes().subspan(kSafetensorsPrefixBytes, *length),
                             {path, 0, file_bytes - tensors.data_begin_}, tensors.table_, faults);
    tensors.table_.sort_by_name();
    TANDEM_RETURN_IF_ERROR(faults.to_status(path));
    return tensors;
  }

  int64_t size() const { return table_.size(); }
  TensorEntry entry(int64_t i) const { return table_.entry(i); }
  std::optional<TensorEntry> find(std::string_view name) const {
    const auto found = table_.find(name);
    if (!found) return std::nullopt;
    return table_.entry(*found);
  }
  template <class T>
  std::vector<T> values(const TensorEntry& entry) const {
    std::vector<T> values(entry.num_bytes / sizeof(T));
    std::memcpy(values.data(), file_.bytes().data() + data_begin_ + entry.begin, values.size() * sizeof(T));
    return values;
  }

 private:
  MappedFile file_;
  TensorTable table_;
  uint64_t data_begin_ = 0;
};

// The prompts beside the file, when it does not hold them itself.
Result<std::vector<ScorePrompt>> prompts_beside(const std::string& path) {
  const std::string beside = std::filesystem::path(path).replace_extension(".json").string();
  std::error_code error;
  if (!std::filesystem::exists(beside, error)) return std::vector<ScorePrompt>{};
  const Result<std::string> text = read_file(beside, "a JSON file of prompts", int64_t{1} << 30);
  if (!text.is_ok()) return text.status();
  return parse_score_input(text.value(), beside);
}

class GoldenReader {
 public:
  GoldenReader(const SmallTensors& tensors, const std::vector<ScorePrompt>& beside, int64_t vocab_size,
               FaultList& faults)
      : tensors_(tensors), beside_(beside), vocab_size_(vocab_size), faults_(faults) {}

  void read(const TensorEntry& logits, std::vector<GoldenPrompt>& prompts) {
    GoldenPrompt prompt;
    prompt.id = logits.name.substr(0, logits.name.size() - kLogits.size());
    if (!read_tokens(prompt)) return;
    const auto rows = static_cast<int64_t>(prompt.tokens.size());
    const bool fits =
        logits.shape.size() == 2 && logits.shape[1] == vocab_size_ && logits.shape[0] >= 1 && logits.shape[0] <= rows;
    if (logits.dtype != DType::kF32 || !fits) {
      faults_.add(logits.name, ": expected F32 of at most ", rows, " rows of ", vocab_size_, " logits");
      return;
    }
    prompt.run.rows = rows;
    prompt.run.logit_rows = logits.shape[0];
    prompt.run.vocab = vocab_size_;
    prompt.run.logits = tensors_.values<float>(logits);
    read_routes(prompt);
    prompts.push_back(std::move(prompt));
  }

 private:
  bool read_tokens(GoldenPrompt& prompt) {
    const std::string name = cat(prompt.id, kIds);
    if (const std::optional<TensorEntry> ids = tensors_.find(name)) {
      if (ids->dtype != DType::kI32 || ids->shape.size() != 1 || ids->shape[0] < 1) {
        faults_.add(name, ": expected I32 [T]");
        return false;
      }
      for (const int32_t id : tensors_.values<int32_t>(*ids)) prompt.tokens.emplace_back(id);
    } else {
      for (const ScorePrompt& candidate : beside_) {
        if (candidate.id == prompt.id) prompt.tokens = candidate.tokens;
      }
      if (prompt.tokens.empty()) {
        faults_.add(prompt.id, kLogits, ": its prompt is missing: expected ", name,
                    ", or a JSON file of prompts beside this one");
        return false;
      }
    }
    for (const TokenId token : prompt.tokens) {
      if (token.value >= 0 && token.value < vocab_size_) continue;
      faults_.add(name, ": ", token.value, ", expected an id in 0..", vocab_size_ - 1);
      return false;
    }
    return true;
  }

  void read_routes(GoldenPrompt& prompt) const {
    const std::string prefix = cat(prompt.id, kLayer);
    for (int64_t i = 0; i < tensors_.size(); ++i) {
      const TensorEntry entry = tensors_.entry(i);
      if (!entry.name.starts_with(prefix) || !entry.name.ends_with(kRoutes)) continue;
      const std::string_view number =
          entry.name.substr(prefix.size(), entry.name.size() - prefix.size() - kRoutes.size());
      int64_t layer = -1;
      const auto parsed = std::from_chars(number.data(), number.data() + number.size(), layer);
      const bool all_rows = entry.shape.size() == 2 && entry.shape[0] == prompt.run.rows && entry.shape[1] > 0;
      if (parsed.ec != std::errc() || layer < 0 || entry.dtype != DType::kI32 || !all_rows) continue;
      prompt.run.routes[layer] = tensors_.values<int32_t>(entry);
    }
  }

  const SmallTensors& tensors_;
  const std::vector<ScorePrompt>& beside_;
  const int64_t vocab_size_;
  FaultList& faults_;
};

}  // namespace

Result<std::vector<GoldenPrompt>> read_golden_logits(const std::string& path, int64_t vocab_size) {
  const Result<SmallTensors> tensors = SmallTensors::open(path);
  if (!tensors.is_ok()) return tensors.status();
  const Result<std::vector<ScorePrompt>> beside = prompts_beside(path);
  if (!beside.is_ok()) return beside.status();
  std::vector<GoldenPrompt> prompts;
  FaultList faults;
  GoldenReader reader(tensors.value(), beside.value(), vocab_size, faults);
  for (int64_t i = 0; i < tensors.value().size(); ++i) {
    const TensorEntry entry = tensors.value().entry(i);
    if (entry.name.ends_with(kLogits)) reader.read(entry, prompts);
  }
  if (prompts.empty() && faults.empty()) faults.add("it holds no tensor named <id>", kLogits);
  TANDEM_RETURN_IF_ERROR(faults.to_status(path));
  return prompts;
}

Status write_golden_logits(const std::string& path, const std::vector<GoldenPrompt>& prompts) {
  struct Named {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
    std::span<const std::byte> bytes;
  };
  std::vector<std::vector<int32_t>> ids;
  ids.reserve(prompts.size());  // spans of it are kept
  std::vector<Named> named;
  for (const GoldenPrompt& prompt : prompts) {
    ids.emplace_back();
    for (const TokenId token : prompt.tokens) ids.back().push_back(token.value);
    const TestRun& run = prompt.run;
    named.push_back({cat(prompt.id, kIds), DType::kI32, {run.rows}, std::as_bytes(std::span(ids.back()))});
    named.push_back(
        {cat(prompt.id, kLogits), DType::kF32, {run.logit_rows, run.vocab}, std::as_bytes(std::span(run.logits))});
    for (const auto& [layer, routes] : run.routes) {
      named.push_back({cat(prompt.id, kLayer, layer, kRoutes),
                       DType::kI32,
                       {run.rows, static_cast<int64_t>(routes.size()) / run.rows},
                       std::as_bytes(std::span(routes))});
    }
  }
  std::vector<TensorToWrite> tensors;
  for (const Named& tensor : named) tensors.push_back({{tensor.name, tensor.dtype, tensor.shape}, tensor.bytes});
  return write_safetensors(path, tensors);
}

}  // namespace tandem

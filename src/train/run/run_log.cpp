#include "train/run/run_log.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>

#include "base/cat.h"
#include "base/read_file.h"
#include "weights/atomic_file.h"

namespace tandem::train {
namespace {

using nlohmann::ordered_json;

// The lines of `text` that belong to the first `step` steps.
std::string lines_up_to(const std::string& text, int64_t step) {
  std::string kept;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const ordered_json line = ordered_json::parse(text.substr(begin, end - begin), nullptr, false);
    if (line.is_object() && line.contains("step") && line["step"].is_number_integer() && line["step"] <= step) {
      kept.append(text, begin, end + 1 - begin);
    }
    begin = end + 1;
  }
  return kept;
}

template <class... Numbers>
std::string format(const char* pattern, Numbers... numbers) {
  char buffer[160];
  const int size = std::snprintf(buffer, sizeof buffer, pattern, numbers...);
  return {buffer, static_cast<size_t>(size < 0 ? 0 : size)};
}

std::string short_number(double value) {
  if (value >= 1e9) return format("%.2fG", value / 1e9);
  if (value >= 1e6) return format("%.2fM", value / 1e6);
  return value >= 1e3 ? format("%.1fk", value / 1e3) : format("%.0f", value);
}

double mean_of(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

double StepRecord::expert_load_mean() const { return mean_of(expert_load); }

double ValidationRecord::bits() const { return loss / std::numbers::ln2; }

Result<RunLog> RunLog::open(const std::string& run_dir, int64_t step) {
  RunLog log;
  log.path_ = run_dir + "/log.jsonl";
  const Result<std::string> text = read_file(log.path_, "a training log");
  if (!text.is_ok() && text.status().code() != StatusCode::kNotFound) return text.status();
  if (text.is_ok()) {
    const std::string kept = lines_up_to(text.value(), step);
    if (kept.size() != text.value().size()) TANDEM_RETURN_IF_ERROR(write_file_atomic(log.path_, kept));
  }
  log.file_.reset(std::fopen(log.path_.c_str(), "ae"));
  if (log.file_ == nullptr) return Status::io(cat(log.path_, ": cannot open it: ", std::strerror(errno)));
  return log;
}

Status RunLog::write_line(const std::string& line) {
  const std::string text = line + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() && std::fflush(file_.get()) == 0) {
    return Status::ok();
  }
  const int error = errno;
  const std::string message = cat(path_, ": cannot write: ", std::strerror(error));
  return error == ENOSPC || error == EDQUOT || error == EFBIG ? Status::exhausted(message) : Status::io(message);
}

Status RunLog::write(const StepRecord& record) {
  ordered_json line = {{"step", record.step},           {"tokens", record.tokens},
                       {"loss", record.loss},           {"learning_rate", record.learning_rate},
                       {"grad_norm", record.grad_norm}, {"tokens_per_second", record.tokens_per_second},
                       {"seconds", record.seconds}};
  if (!record.expert_load.empty()) {
    line["expert_load"] = record.expert_load;
    line["expert_load_mean"] = record.expert_load_mean();
  }
  if (record.expert_load_64 && !record.expert_load_64->empty()) {
    line["expert_load_64"] = {{"mean", mean_of(*record.expert_load_64)},
                              {"worst", *std::ranges::max_element(*record.expert_load_64)}};
  }
  if (record.mtp_loss) line["mtp_loss"] = *record.mtp_loss;
  if (record.peak_memory_bytes) line["peak_memory_bytes"] = *record.peak_memory_bytes;
  return write_line(line.dump());
}

Status RunLog::write(const ValidationRecord& record) {
  const ordered_json line = {{"step", record.step},
                             {"tokens", record.tokens},
                             {"validation_loss", record.loss},
                             {"validation_bits", record.bits()},
                             {"seconds", record.seconds}};
  return write_line(line.dump());
}

std::string duration_text(double seconds) {
  const auto total = static_cast<long>(seconds + 0.5);
  if (total >= 3600) return format("%ldh%02ldm", total / 3600, total / 60 % 60);
  return total >= 60 ? format("%ldm%02lds", total / 60, total % 60) : format("%lds", total);
}

std::string progress_line(const StepRecord& record, int64_t num_steps, double seconds_left) {
  std::string line =
      cat("step ", record.step, '/', num_steps,
          format("  loss %.4f  lr %.2e  grad %.3g  ", record.loss, record.learning_rate, record.grad_norm),
          short_number(record.tokens_per_second), " tok/s");
  if (!record.expert_load.empty()) line += format("  load %.2f", record.expert_load_mean());
  if (record.peak_memory_bytes) line += cat("  ", short_number(static_cast<double>(*record.peak_memory_bytes)), "B");
  return cat(line, "  ", duration_text(record.seconds), ", ", duration_text(seconds_left), " left");
}

std::string progress_line(const ValidationRecord& record, int64_t num_steps) {
  return cat("step ", record.step, '/', num_steps,
             format("  validation: %.4f nats/token, %.4f bits/token", record.loss, record.bits()));
}

}  // namespace tandem::train

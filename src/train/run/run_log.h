// train/run/run_log.h: log.jsonl, one JSON object a line, and the same for people.
//
//   Training step  {"step", "tokens", "loss", "learning_rate", "grad_norm", "tokens_per_second", "seconds",
//                   "expert_load": [largest over mean load of each MoE layer], "expert_load_mean", "peak_memory_bytes",
//                   "mtp_loss", and each 64 steps, over the tokens of those, "expert_load_64": {"mean" of the layers'
//                   largest over mean, "worst" layer}}
//   Validation     {"step", "tokens", "validation_loss", "validation_bits", "seconds"}
//   Loss in nats a token, bits in bits a token; step and tokens count what was trained before the line was written.
//   No torch in here. Threading: the training thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace tandem::train {

struct StepRecord {
  int64_t step = 0;
  int64_t tokens = 0;
  double loss = 0;
  double learning_rate = 0;
  double grad_norm = 0;
  double tokens_per_second = 0;
  double seconds = 0;  // of the run
  std::vector<double> expert_load = {};
  std::optional<std::vector<double>> expert_load_64 = {};  // of a step that completes a window
  std::optional<int64_t> peak_memory_bytes = {};           // of the GPU
  std::optional<double> mtp_loss = {};                     // of a model with an MTP layer
  double expert_load_mean() const;
};

struct ValidationRecord {
  int64_t step = 0;
  int64_t tokens = 0;
  double loss = 0;
  double seconds = 0;
  double bits() const;
};

class RunLog {
 public:
  // Opens log.jsonl for appending, after dropping what lies behind `step`: lines that a killed run wrote past its last
  // checkpoint, and a last line that is not complete.
  static Result<RunLog> open(const std::string& run_dir, int64_t step);

  Status write(const StepRecord& record);
  Status write(const ValidationRecord& record);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  Status write_line(const std::string& line);

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

// "step 120/6000  loss 3.412  lr 1.0e-03  grad 0.81  12.3k tok/s  load 1.08  2m10s, 1h12m left"
std::string progress_line(const StepRecord& record, int64_t num_steps, double seconds_left);
std::string progress_line(const ValidationRecord& record, int64_t num_steps);
std::string duration_text(double seconds);

}  // namespace tandem::train

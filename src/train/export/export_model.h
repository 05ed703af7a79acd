// train/export/export_model.h: a trained model → a checkpoint folder in the released format, which `tandem` runs.
//
//   Law  the exported MXFP4 experts, decoded, are mxfp4_round() of the float parameters bit for bit: what the forward
//        pass with ForwardOptions::mxfp4_experts saw. The trunk is BF16 of them, rounded to nearest even, and F32 where
//        released; the router bias is as the balancer left it.
//   Threading: reads the model only.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "train/export/released_writer.h"
#include "train/modules/train_model.h"

namespace tandem::train {

struct ExportOptions {
  std::string output_dir;
  std::string config_json;                                 // of this model; written as config.json
  std::vector<std::pair<std::string, std::string>> files;  // name and content: tokenizer, generation_config.json
  ReleasedOptions format;
};

struct ExportReport {
  int64_t num_parameters = 0;
  int64_t num_tensors = 0;  // in the files
  int64_t num_shards = 0;
  uint64_t tensor_bytes = 0;
};

// kInvalidArgument when config_json describes other tensors than the model has, kNonFinite naming the first parameter
// that is not finite. After a failure the output folder is as it was.
Result<ExportReport> export_model(const TrainModel& model, const ExportOptions& options);

// The files that a model folder has beside its tensors and config.json, as far as `dir` has them.
Result<std::vector<std::pair<std::string, std::string>>> read_companion_files(const std::string& dir);

}  // namespace tandem::train

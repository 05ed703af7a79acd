// tandem-train export: a run's parameters → a checkpoint folder that `tandem` runs.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "base/read_file.h"
#include "command.h"
#include "train/export/export_model.h"
#include "train/run/train_checkpoint.h"

namespace tandem::app {
namespace {

using Json = nlohmann::ordered_json;

struct ExportFlags {
  std::string run_dir;
  std::string output;
  std::string trunk = "released";
  std::optional<int64_t> step;
  bool overwrite = false;
  bool json = false;
};

// Packed experts that training never saw rounded, or rounded ones that are exported whole, are worth a word.
void warn_of_other_rounding(const std::string& run_dir, const ModelConfig& config) {
  const Result<std::string> text = read_file(cat(run_dir, "/recipe.json"), "the recipe of a run");
  if (!text.is_ok()) return;
  const Json recipe = Json::parse(text.value(), nullptr, /*allow_exceptions=*/false);
  if (!recipe.is_object() || config.num_experts == 0) return;
  const auto found = recipe.find("mxfp4_experts");
  const bool trained = found != recipe.end() && found->is_boolean() && found->get<bool>();
  if (trained == config.declares_mxfp4) return;
  std::fprintf(stderr, "tandem-train: warning: the run was trained %s MXFP4 experts, and config.json declares %s\n",
               trained ? "with" : "without", trained ? "none" : "them: the experts are rounded now");
}

int run_export(const ExportFlags& flags) {
  train::ExportOptions options;
  options.output_dir = flags.output;
  options.format.trunk_f32 = flags.trunk == "f32";
  options.format.overwrite = flags.overwrite;
  Result<std::string> config = read_file(cat(flags.run_dir, "/config.json"), "the configuration of a run");
  if (!config.is_ok()) return report_error(config.status());
  options.config_json = std::move(config).value();
  auto files = train::read_companion_files(flags.run_dir);
  if (!files.is_ok()) return report_error(files.status());
  options.files = std::move(files).value();
  const Result<train::TrainModel> model = train::load_run_model(flags.run_dir, flags.step, at::kCPU);
  if (!model.is_ok()) return report_error(model.status());
  warn_of_other_rounding(flags.run_dir, model.value().config());
  const Result<train::ExportReport> report = train::export_model(model.value(), options);
  if (!report.is_ok()) return report_error(report.status());
  const train::ExportReport& r = report.value();
  if (flags.json) {
    const Json document = {{"output", flags.output},
                           {"parameters", r.num_parameters},
                           {"tensors", r.num_tensors},
                           {"bytes", r.tensor_bytes},
                           {"shards", r.num_shards}};
    std::printf("%s\n", document.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    std::printf("%s\n", cat(flags.output, ": ", r.num_parameters, " parameters in ", r.num_tensors, " tensors, ",
                            r.tensor_bytes, " bytes, ", r.num_shards, r.num_shards == 1 ? " file" : " files")
                            .c_str());
  }
  return kExitOk;
}

}  // namespace

void register_export(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ExportFlags>();
  CLI::App* command = app.add_subcommand("export", "Write a run's model as a released-format checkpoint");
  command->add_option("RUN", flags->run_dir, "folder of a run")->required();
  command->add_option("--output", flags->output, "folder to write, new or empty")->required();
  command->add_option("--step", flags->step, "of which checkpoint (default: the newest)")
      ->check(CLI::Range(int64_t{0}, INT64_MAX));
  command->add_option("--trunk", flags->trunk, "released | f32: how everything but MXFP4 experts is stored")
      ->check(CLI::IsMember({"released", "f32"}))
      ->capture_default_str();
  command->add_flag("--overwrite", flags->overwrite, "accept an output folder with files in it");
  command->add_flag("--json", flags->json, "print JSON only on stdout");
  command->footer("Example:\n  tandem-train export models/local/nano --output models/nano");
  command->callback([flags, &exit_code] { exit_code = run_export(*flags); });
}

}  // namespace tandem::app

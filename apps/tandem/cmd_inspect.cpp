// tandem inspect: what a checkpoint is and whether it is whole, without reading a tensor.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "command.h"
#include "engine/inspect.h"

namespace tandem::app {
namespace {

struct InspectOptions {
  CommonFlags common;
  std::string model;
};

int inspect(const InspectOptions& options) {
  auto report = inspect_model(options.model);
  if (!report.is_ok()) return report_error(report.status());
  if (options.common.json) {
    fmt::print("{}\n", inspect_json(report.value()));
  } else {
    fmt::print("{}", inspect_text(report.value()));
  }
  const Status fit = report.value().tensors.to_status(options.model);
  return fit.is_ok() ? kExitOk : report_error(fit);
}

}  // namespace

void register_inspect(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "inspect", "Show a model's shapes, layer map, cache and tensors, and what is missing or unknown.");
  auto options = std::make_shared<InspectOptions>();  // shared with the callback, which outlives this function
  command->add_option("MODEL", options->model, "model folder, or a bare config.json")->required();
  add_common_flags(command, options->common);
  command->footer(
      "Reads config.json, the index and the shard headers only. Exits with 1 when a tensor is missing, unknown or\n"
      "mis-shaped.\n\nExamples:\n  tandem inspect models/my-k3\n  tandem inspect configs/k3.json --json");
  command->callback([options, &exit_code] { exit_code = inspect(*options); });
}

}  // namespace tandem::app

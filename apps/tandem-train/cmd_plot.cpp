// tandem-train plot: the log of a run as a PNG.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/cat.h"
#include "base/read_file.h"
#include "command.h"
#include "evaluate/training_curves.h"
#include "weights/atomic_file.h"

namespace tandem::app {
namespace {

struct PlotFlags {
  std::string run_dir;
  std::string output;
};

int run_plot(const PlotFlags& flags) {
  const std::string log_path = cat(flags.run_dir, "/log.jsonl");
  const std::string output = flags.output.empty() ? cat(flags.run_dir, "/curves.png") : flags.output;
  const Result<std::string> text = read_file(log_path, "the log of a run");
  if (!text.is_ok()) return report_error(text.status());
  const Result<TrainingCurves> curves = parse_training_log(text.value(), log_path);
  if (!curves.is_ok()) return report_error(curves.status());
  std::error_code error;
  const std::filesystem::path run = std::filesystem::absolute(flags.run_dir, error).lexically_normal();
  const std::string name = run.has_filename() ? run.filename().string() : run.parent_path().filename().string();
  const Result<std::string> picture = draw_training_curves(curves.value(), name);
  if (!picture.is_ok()) {
    return report_error(Status(picture.status().code(), cat(log_path, ": ", picture.status().message())));
  }
  const Status written = write_file_atomic(output, picture.value());
  if (!written.is_ok()) return report_error(written);
  fmt::print("{}\n", output);
  return kExitOk;
}

}  // namespace

void register_plot(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<PlotFlags>();
  CLI::App* command = app.add_subcommand("plot", "Draw a run's loss, learning rate, expert load and gradient norm");
  command->add_option("RUN", flags->run_dir, "folder of a run, with its log.jsonl")->required();
  command->add_option("--output", flags->output, "PNG file to write (default: curves.png in the run folder)");
  command->footer("Example:\n  tandem-train plot models/local/nano --output curves.png");
  command->callback([flags, &exit_code] { exit_code = run_plot(*flags); });
}

}  // namespace tandem::app

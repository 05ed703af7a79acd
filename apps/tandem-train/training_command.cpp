#include "training_command.h"

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "train/run/run_log.h"
#include "train/run/trainer.h"

namespace tandem::app {
namespace {

struct TrainingFlags {
  std::string recipe;
  std::vector<std::string> overrides;
  train::TrainOptions options;
  bool resume = false;
  bool overwrite = false;
  bool json = false;
};

std::atomic<bool> stop_asked{false};

// A second signal ends the process where it is.
void stop_on_signal(int signal) {
  if (stop_asked.exchange(true)) std::signal(signal, SIG_DFL);
}

void print_json(const train::TrainSummary& summary) {
  nlohmann::ordered_json out = {{"run", summary.run},
                                {"finished", summary.is_finished()},
                                {"step", summary.step},
                                {"num_steps", summary.num_steps},
                                {"tokens", summary.tokens}};
  out["loss"] = summary.loss ? nlohmann::ordered_json(*summary.loss) : nullptr;
  out["validation_loss"] = summary.validation_loss ? nlohmann::ordered_json(*summary.validation_loss) : nullptr;
  out["seconds"] = summary.seconds;
  out["tokens_per_second"] = summary.tokens_per_second;
  out["checkpoint"] = summary.checkpoint;
  std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

void print_text(const TrainingFlags& flags, const std::string& command, const train::TrainSummary& summary) {
  std::string text = cat(summary.is_finished() ? "finished " : "stopped ", summary.run, " at step ", summary.step,
                         " of ", summary.num_steps, " after ", train::duration_text(summary.seconds));
  if (summary.loss) text += cat("; loss ", *summary.loss);
  if (summary.validation_loss) text += cat("; validation ", *summary.validation_loss, " nats/token");
  if (!summary.checkpoint.empty()) text += cat("\ncheckpoint ", summary.checkpoint);
  if (!summary.is_finished()) {
    text += cat("\nto go on: tandem-train ", command, ' ', flags.recipe);
    for (const std::string& setting : flags.overrides) text += cat(" --set '", setting, '\'');
    text += " --resume";
  }
  std::printf("%s\n", text.c_str());
}

int run_training(TrainingFlags& flags, train::RunKind kind, const std::string& command) {
  const Result<train::Recipe> recipe = train::load_recipe(flags.recipe, kind, flags.overrides);
  if (!recipe.is_ok()) return report_error(recipe.status());
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, stop_on_signal);
  std::signal(SIGPIPE, SIG_IGN);  // whoever read the progress may go, the run goes on
  flags.options.stop = &stop_asked;
  flags.options.existing = flags.resume      ? train::ExistingRun::kResume
                           : flags.overwrite ? train::ExistingRun::kOverwrite
                                             : train::ExistingRun::kRefuse;
  flags.options.progress = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  const Result<train::TrainSummary> summary = train::train(recipe.value(), flags.options);
  if (!summary.is_ok()) return report_error(summary.status());
  if (flags.json) {
    print_json(summary.value());
  } else {
    print_text(flags, command, summary.value());
  }
  return kExitOk;
}

}  // namespace

void register_training(CLI::App& app, int& exit_code, train::RunKind kind, const std::string& name,
                       const std::string& description, const std::string& footer) {
  auto flags = std::make_shared<TrainingFlags>();
  CLI::App* command = app.add_subcommand(name, description);
  command->add_option("recipe", flags->recipe, "the recipe, a JSON file")->required();
  command->add_option("--set", flags->overrides, "key.path=value in place of the recipe's, as often as wanted")
      ->take_all()
      ->allow_extra_args(false);
  command->add_option("--device", flags->options.device, "auto, cpu, cuda or cuda:<number>")->capture_default_str();
  auto* resume = command->add_flag("--resume", flags->resume, "go on from the run's newest checkpoint, if it has one");
  command->add_flag("--overwrite", flags->overwrite, "remove the run that is there and start anew")->excludes(resume);
  command->add_option("--max-steps", flags->options.max_steps, "stop after so many steps, with a checkpoint")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command->add_option("--max-seconds", flags->options.max_seconds, "stop after so many seconds, with a checkpoint")
      ->check(CLI::PositiveNumber);
  command->add_flag("--json", flags->json, "print the summary as one JSON object");
  command->footer(footer);
  command->callback([flags, kind, name, &exit_code] { exit_code = run_training(*flags, kind, name); });
}

}  // namespace tandem::app

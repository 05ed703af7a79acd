// tandem-train eval: a model measured on held-out data, by the engine.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/cat.h"
#include "base/read_file.h"
#include "command.h"
#include "engine/loaded_model.h"
#include "evaluate/evaluation.h"
#include "progress_line.h"
#include "weights/atomic_file.h"

namespace tandem::app {
namespace {

struct EvalFlags {
  std::string model_dir;
  std::string recipe = "recipes/nano/eval.json";
  std::string output;
  std::vector<std::string> only;
  std::optional<int64_t> cases;
  std::optional<int64_t> seed;
  int64_t show_failures = 0;
  int num_threads = 0;
  bool json = false;
};

Result<EvalRecipe> load_recipe(const EvalFlags& flags) {
  const Result<std::string> text = read_file(flags.recipe, "an evaluation recipe", int64_t{1} << 20);
  if (!text.is_ok()) return text.status();
  Result<EvalRecipe> recipe =
      parse_eval_recipe(text.value(), flags.recipe, std::filesystem::path(flags.recipe).parent_path().string());
  if (!recipe.is_ok()) return recipe;
  if (flags.seed) recipe.value().seed = static_cast<uint64_t>(*flags.seed);
  if (flags.cases) {
    for (FamilyCases& cases : recipe.value().chats) cases.cases = std::min(cases.cases, *flags.cases);
  }
  if (!flags.only.empty()) TANDEM_RETURN_IF_ERROR(keep_only(recipe.value(), flags.only));
  return recipe;
}

std::string progress_text(const EvalProgress& progress, double seconds) {
  if (progress.done == progress.total)
    return fmt::format("{}: {} done, {:.1f} s", progress.section, progress.total, seconds);
  return fmt::format("{}: {} of {}, {:.0f} s", progress.section, progress.done, progress.total, seconds);
}

int run_eval(const EvalFlags& flags) {
  const Result<EvalRecipe> recipe = load_recipe(flags);
  if (!recipe.is_ok()) return report_error(recipe.status());
  if (!flags.output.empty()) {  // what cannot be written is better known before minutes of work
    const Result<AtomicFile> file = AtomicFile::create(flags.output);
    if (!file.is_ok()) return report_error(file.status());
  }
  LoadOptions options;
  options.num_threads = flags.num_threads > 0 ? flags.num_threads : std::max(1u, std::thread::hardware_concurrency());
  const auto model = LoadedModel::load(flags.model_dir, options);
  if (!model.is_ok()) return report_error(model.status());
  const auto start = std::chrono::steady_clock::now();
  ProgressLine line;
  const auto show = [&](const EvalProgress& progress) {
    const bool is_end = progress.done == progress.total;
    if (!is_end && !line.is_due()) return;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const std::string text = progress_text(progress, seconds.count());
    is_end ? line.finish(text) : line.show(text);
  };
  const Result<EvalReport> report =
      evaluate(*model.value(), recipe.value(), {.max_failures = flags.show_failures}, show);
  if (!report.is_ok()) return report_error(report.status());
  const std::string json = eval_report_json(report.value()) + "\n";
  if (!flags.output.empty()) {
    const Status written = write_file_atomic(flags.output, json);
    if (!written.is_ok()) return report_error(written);
  }
  fmt::print("{}", flags.json ? json : eval_report_text(report.value()));
  return kExitOk;
}

}  // namespace

void register_eval(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* command = app.add_subcommand("eval", "Measure a model on held-out prose and test conversations");
  command->add_option("MODEL", flags->model_dir, "checkpoint folder in the released format, with its tokenizer")
      ->required();
  command->add_option("--recipe", flags->recipe, "what is measured: a JSON file")->capture_default_str();
  command->add_option("--only", flags->only, "parts of the recipe: prose, laws, a family, recall, recall@4096")
      ->delimiter(',');
  command->add_option("--cases", flags->cases, "cases of a family or distance at most")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}));
  command->add_option("--seed", flags->seed, "of the conversations (default: the recipe's)")
      ->check(CLI::Range(int64_t{0}, INT64_MAX));
  command->add_option("--show-failures", flags->show_failures, "wrong replies to show of each part")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000}));
  command->add_option("--threads", flags->num_threads, "threads to compute with (default: every core)")
      ->check(CLI::Range(1, 1024));
  command->add_option("--output", flags->output, "file for the results as JSON");
  command->add_flag("--json", flags->json, "print JSON only on stdout");
  command->footer(
      "Examples:\n"
      "  tandem-train eval models/nano\n"
      "  tandem-train eval models/nano --only arithmetic,recall@4096 --cases 20 --show-failures 3");
  command->callback([flags, &exit_code] { exit_code = run_eval(*flags); });
}

}  // namespace tandem::app

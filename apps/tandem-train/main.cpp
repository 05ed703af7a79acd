// apps/tandem-train/main.cpp: the command line of the trainer: from text to a checkpoint that `tandem` runs.
#include <CLI/CLI.hpp>

#include "command.h"

int main(int argc, char** argv) {
  CLI::App app{"Train Kimi-K3-family models: tokenizer, corpus, pre-training, fine-tuning, evaluation, export."};
  app.name("tandem-train");
  app.require_subcommand(1);
  app.set_version_flag("--version", TANDEM_VERSION);
  int exit_code = tandem::app::kExitOk;
#ifndef TANDEM_GPU_BUILD
  tandem::app::register_tokenizer(app, exit_code);
  tandem::app::register_corpus(app, exit_code);
#endif
  tandem::app::register_pretrain(app, exit_code);
  tandem::app::register_sft(app, exit_code);
  tandem::app::register_check(app, exit_code);
  tandem::app::register_export(app, exit_code);
#ifndef TANDEM_GPU_BUILD
  tandem::app::register_eval(app, exit_code);
  tandem::app::register_plot(app, exit_code);
#endif
  return tandem::app::run_command_line(app, argc, argv, exit_code);
}

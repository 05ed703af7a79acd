// apps/tandem/main.cpp: the command line: one binary, one subcommand a job.
#include <CLI/CLI.hpp>

#include "command.h"

int main(int argc, char** argv) {
  CLI::App app{"Run, score and inspect Kimi-K3-family models straight from their released files."};
  app.name("tandem");
  app.require_subcommand(1);
  app.set_version_flag("--version", TANDEM_VERSION);
  app.footer(
      "Example:\n  tandem run models/my-k3 \"Name three primes.\" --chat\nEvery command has --help with an example.");
  int exit_code = tandem::app::kExitOk;
  tandem::app::register_run(app, exit_code);
  tandem::app::register_serve(app, exit_code);
  tandem::app::register_score(app, exit_code);
  tandem::app::register_tokenize(app, exit_code);
  tandem::app::register_inspect(app, exit_code);
  tandem::app::register_init(app, exit_code);
  tandem::app::register_bench(app, exit_code);
  tandem::app::register_trace(app, exit_code);
  tandem::app::register_plan(app, exit_code);
  tandem::app::register_doctor(app, exit_code);
  return tandem::app::run_command_line(app, argc, argv, exit_code);
}

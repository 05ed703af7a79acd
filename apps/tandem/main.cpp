// apps/tandem/main.cpp: the command line: one binary, one subcommand a job.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "command.h"

namespace {

std::vector<const CLI::App*> commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

bool is_command(const CLI::App& app, const std::string& name) {
  const auto all = commands(app);
  return std::any_of(all.begin(), all.end(), [&](const CLI::App* command) { return command->get_name() == name; });
}

// CLI11 reports a mistyped command as a missing one.
int report_unknown(const CLI::App& app, const std::string& name) {
  std::string expected;
  for (const CLI::App* command : commands(app)) expected += (expected.empty() ? "" : ", ") + command->get_name();
  fmt::print(stderr, "tandem: error: unknown command \"{}\": expected one of {}\n", name, expected);
  return tandem::app::kExitUsage;
}

// Printing must not throw here.
int fail(const char* message) {
  std::fprintf(stderr, "tandem: error: %s\n", message);
  return tandem::app::kExitFailed;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Run, score and inspect Kimi-K3-family models straight from their released files."};
  app.name("tandem");
  app.require_subcommand(1);
  app.set_version_flag("--version", TANDEM_VERSION);
  app.footer(
      "Example:\n  tandem run models/my-k3 \"Name three primes.\" --chat\nEvery command has --help with an example.");
  int exit_code = tandem::app::kExitOk;
  tandem::app::register_run(app, exit_code);
  tandem::app::register_score(app, exit_code);
  tandem::app::register_tokenize(app, exit_code);
  tandem::app::register_inspect(app, exit_code);
  tandem::app::register_init(app, exit_code);
  tandem::app::register_bench(app, exit_code);
  if (argc > 1 && argv[1][0] != '-' && !is_command(app, argv[1])) return report_unknown(app, argv[1]);
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is a write error like a full disk, not the end of the process
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error) == 0 ? tandem::app::kExitOk : tandem::app::kExitUsage;
  } catch (const std::bad_alloc&) {
    return fail("out of memory");
  } catch (const std::exception& error) {  // from the libraries: no more threads, a stream that cannot be written
    return fail(error.what());
  }
  // What could not be printed was not done.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return fail("cannot write to standard output");
  return exit_code;
}

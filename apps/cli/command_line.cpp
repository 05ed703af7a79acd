#include "command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <vector>

namespace tandem::app {
namespace {

std::string program_name = "tandem";  // of this process, for its error lines

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
  std::fprintf(stderr, "%s: error: unknown command \"%s\": expected one of %s\n", program_name.c_str(), name.c_str(),
               expected.c_str());
  return kExitUsage;
}

// Printing must not throw here.
int fail(const char* message) {
  std::fprintf(stderr, "%s: error: %s\n", program_name.c_str(), message);
  return kExitFailed;
}

}  // namespace

int report_error(const Status& status) {
  std::string indented;
  for (const char c : status.message()) {
    indented.push_back(c);
    if (c == '\n') indented += "  ";
  }
  return fail(indented.c_str());
}

int run_command_line(CLI::App& app, int argc, char** argv, int& exit_code) {
  program_name = app.get_name();
  if (argc > 1 && argv[1][0] != '-' && !is_command(app, argv[1])) return report_unknown(app, argv[1]);
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is a write error like a full disk, not the end of the process
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error) == 0 ? kExitOk : kExitUsage;
  } catch (const std::bad_alloc&) {
    return fail("out of memory");
  } catch (const std::exception& error) {  // from the libraries: no more threads, a stream that cannot be written
    return fail(error.what());
  }
  // What could not be printed was not done.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return fail("cannot write to standard output");
  return exit_code;
}

}  // namespace tandem::app

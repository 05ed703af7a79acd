// apps/cli/command_line.h: what the project's command lines share: exit codes, error lines, the run of a subcommand.
//
//   Exit codes: 0 done, 1 refused or failed (the message is on stderr), 2 wrong usage. With --json stdout carries JSON
//   only; logs and errors go to stderr.
#pragma once

#include <string>

#include "tandem/status.h"

namespace CLI {
class App;
}

namespace tandem::app {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

// Prints "<program>: error: <message>" on stderr, every line of a long message indented; returns kExitFailed.
int report_error(const Status& status);

// Parses the arguments and runs the chosen subcommand, whose callback stores its result in `exit_code`. Returns the
// exit code of the process: that one, or kExitUsage for wrong arguments, or kExitFailed for what a library threw and
// for output that could not be written.
int run_command_line(CLI::App& app, int argc, char** argv, int& exit_code);

}  // namespace tandem::app

// apps/cli/config_file.h: the flags of a subcommand from a file.
#pragma once

#include <string>

#include "base/result.h"

namespace CLI {
class App;
}

namespace tandem::app {

// Reads TOML or INI whose keys are the names of `command`'s flags, without dashes; what the command line gave stays.
// Call it in the command's callback. The error names the file and the key.
Status apply_config_file(CLI::App& command, const std::string& path);

}  // namespace tandem::app

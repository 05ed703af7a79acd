// evaluate/child_process.h: a program run to its end with given bytes on its standard input. No shell: arguments are
// passed as they are. Input and outputs are anonymous files in memory, so no order of reading can block.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem {

struct ChildResult {
  int exit_code = 0;  // 128 + signal when a signal ended it
  std::string out;
  std::string err;
};

// `words`: the program, looked up in PATH, and its arguments. kNotFound when there is no such program.
Result<ChildResult> run_child(const std::vector<std::string>& words, std::string_view input);

}  // namespace tandem

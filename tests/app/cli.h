// tests/app/cli.h: runs the built `tandem` or `tandem-train` as a child process, and the models the tests run it on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "support/temp_folder.h"

namespace tandem::test {

struct CliOptions {
  std::string input = {};        // on standard input
  std::string stdout_path = {};  // where standard output goes; empty: captured
  uint64_t file_size_limit = 0;  // bytes a written file may have; 0: none. Stands for a full disk
  int interrupt_after_ms = 0;    // SIGINT after that time; 0: never
};

struct CliResult {
  int exit_code = 0;  // 128 + signal when a signal ended it
  std::string out;
  std::string err;
};

CliResult run_cli(const std::vector<std::string>& args, const CliOptions& options = {});
// `tandem-train`; only where it was built.
CliResult run_trainer(const std::vector<std::string>& args, const CliOptions& options = {});
bool has_trainer();

// Exit code, nothing on stdout, one of our own messages on stderr that contains every one of `words`.
void expect_refused(const CliResult& result, int exit_code, const std::vector<std::string_view>& words);

std::string config_path(std::string_view name);   // below configs/
std::string golden_model(std::string_view name);  // below tests/data/golden

// `tandem init configs/demo.json`, made once a process: the only small model with a tokenizer.
const std::string& demo_model();

// A folder that holds links to the files of `model`, less the `replaced` ones, which the caller writes.
void link_model(const std::string& model, const std::string& folder, const std::vector<std::string_view>& replaced);

// "1,2,3"
std::string token_list(const std::vector<int32_t>& ids);

}  // namespace tandem::test

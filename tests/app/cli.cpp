#include "app/cli.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/cat.h"
#include "support/golden.h"

namespace tandem::test {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kLongestRunSeconds = 240;

// Between fork and exec: only what is safe there.
[[noreturn]] void become_program(const std::vector<char*>& argv, const CliOptions& options, int in, int out, int err) {
  ::dup2(in, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  if (options.file_size_limit > 0) {
    const rlimit limit = {options.file_size_limit, options.file_size_limit};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ::alarm(kLongestRunSeconds);
  ::execv(argv[0], argv.data());
  ::_exit(126);
}

int open_file(const std::string& path, int flags) {
  const int file = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  EXPECT_GE(file, 0) << path;
  return file;
}

int wait_for(pid_t child) {
  int state = 0;
  EXPECT_EQ(::waitpid(child, &state, 0), child);
  return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

CliResult run_program(const std::string& program, const std::vector<std::string>& args, const CliOptions& options) {
  const TempFolder scratch;
  std::vector<std::string> words = {program};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  const std::string captured = scratch.path("out");
  const int in = open_file(scratch.write("in", options.input), O_RDONLY);
  const int out =
      options.stdout_path.empty() ? open_file(captured, O_WRONLY | O_CREAT) : open_file(options.stdout_path, O_WRONLY);
  const int err = open_file(scratch.path("err"), O_WRONLY | O_CREAT);
  const pid_t child = ::fork();
  if (child == 0) become_program(argv, options, in, out, err);
  for (const int file : {in, out, err}) ::close(file);
  if (options.interrupt_after_ms > 0) {
    ::usleep(static_cast<useconds_t>(options.interrupt_after_ms) * 1000);
    ::kill(child, SIGINT);
  }
  CliResult result;
  result.exit_code = wait_for(child);
  if (options.stdout_path.empty()) result.out = read_text(captured);
  result.err = read_text(scratch.path("err"));
  return result;
}

}  // namespace

CliResult run_cli(const std::vector<std::string>& args, const CliOptions& options) {
  return run_program(TANDEM_BINARY, args, options);
}

CliResult run_trainer(const std::vector<std::string>& args, const CliOptions& options) {
  return run_program(TANDEM_TRAIN_BINARY, args, options);
}

bool has_trainer() { return std::string_view(TANDEM_TRAIN_BINARY) != ""; }

void expect_refused(const CliResult& result, int exit_code, const std::vector<std::string_view>& words) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err.find("terminate called"), std::string::npos) << result.err;
  for (const std::string_view word : words) {
    EXPECT_NE(result.err.find(word), std::string::npos) << "expected \"" << word << "\" in: " << result.err;
  }
}

std::string config_path(std::string_view name) { return cat(TANDEM_CONFIGS_DIR, "/", name); }

std::string golden_model(std::string_view name) { return data_path(cat("golden/", name)); }

const std::string& demo_model() {
  static const TempFolder dir;
  static const std::string model = [] {
    std::string folder = dir.path("demo");
    const CliResult made = run_cli({"init", config_path("demo.json"), "--output", folder, "--seed", "1"});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    return folder;
  }();
  return model;
}

void link_model(const std::string& model, const std::string& folder, const std::vector<std::string_view>& replaced) {
  fs::create_directories(folder);
  for (const fs::directory_entry& file : fs::directory_iterator(model)) {
    const std::string name = file.path().filename().string();
    if (std::find(replaced.begin(), replaced.end(), name) != replaced.end()) continue;
    fs::create_symlink(fs::absolute(file.path()), fs::path(folder) / name);
  }
}

std::string token_list(const std::vector<int32_t>& ids) {
  std::string list;
  for (const int32_t id : ids) list += cat(list.empty() ? "" : ",", id);
  return list;
}

}  // namespace tandem::test

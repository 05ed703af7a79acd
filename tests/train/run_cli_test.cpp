// The built tandem-train as its users run it: a signal, pieces, refusals.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "train/run_support.h"

namespace tandem::train {
namespace {

namespace fs = std::filesystem;
using test::RunFolder;
using ::testing::HasSubstr;

class Process {
 public:
  Process(const RunFolder& folder, std::vector<std::string> arguments) : folder_(folder) {
    arguments.insert(arguments.begin(), TANDEM_TRAIN_BINARY);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const std::string out = folder.path("out.txt"), err = folder.path("err.txt");
    folder.write("out.txt", "");
    folder.write("err.txt", "");
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  void signal(int number) const { ::kill(pid_, number); }
  int wait() const {  // the exit code
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string out() const { return test::read_text(folder_.path("out.txt")); }
  std::string err() const { return test::read_text(folder_.path("err.txt")); }

 private:
  const RunFolder& folder_;
  pid_t pid_ = -1;
};

TEST(TrainCli, ASignalEndsARunThatGoesOnLater) {
  const RunFolder folder;
  const std::string recipe = folder.path("recipe.json");
  const std::vector<std::string> arguments = {
      "pretrain", recipe, "--set", "curriculum.0.tokens=1e9", "--set", "log_every_steps=1", "--device", "cpu"};
  const Process first(folder, arguments);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (first.err().find("step 2/") == std::string::npos && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  first.signal(SIGINT);
  ASSERT_EQ(first.wait(), 0) << first.err();
  EXPECT_THAT(first.out(), HasSubstr("stopped "));
  EXPECT_THAT(first.out(), HasSubstr("--resume"));
  const std::vector<int64_t> saved = list_checkpoints(folder.path("run"));
  ASSERT_FALSE(saved.empty());
  EXPECT_EQ(folder.log("run").back()["step"], saved.back());

  const Process refused(folder, arguments);
  EXPECT_EQ(refused.wait(), 1);
  EXPECT_THAT(refused.err(), HasSubstr("tandem-train: error: "));
  EXPECT_THAT(refused.err(), HasSubstr("--resume goes on"));

  std::vector<std::string> more = arguments;
  more.insert(more.end(), {"--resume", "--max-steps", "2", "--json"});
  const Process second(folder, more);
  ASSERT_EQ(second.wait(), 0) << second.err();
  const nlohmann::json summary = nlohmann::json::parse(second.out());
  EXPECT_EQ(summary["step"], saved.back() + 2);
  EXPECT_EQ(summary["finished"], false);
  EXPECT_TRUE(fs::exists(summary["checkpoint"].get<std::string>()));
}

// Whoever read the progress may go.
TEST(TrainCli, AReaderThatLeavesEndsNoRun) {
  const RunFolder folder;
  const std::string command = cat("'", TANDEM_TRAIN_BINARY, "' pretrain '", folder.path("recipe.json"),
                                  "' --set log_every_steps=1 --device cpu 2>&1 >'", folder.path("out.txt"),
                                  "' | head -n 1 >'", folder.path("first.txt"), "'");
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_THAT(test::read_text(folder.path("first.txt")), HasSubstr("step 1/12"));
  EXPECT_THAT(test::read_text(folder.path("out.txt")), HasSubstr("finished "));
  EXPECT_EQ(list_checkpoints(folder.path("run")).back(), 12);
}

TEST(TrainCli, RefusesAndNames) {
  const RunFolder folder;
  const Process wrong(folder, {"pretrain", folder.path("recipe.json"), "--set", "seed=x"});
  EXPECT_EQ(wrong.wait(), 1);
  EXPECT_THAT(wrong.err(), HasSubstr("seed: expected an integer"));
  const Process ruined(folder, {"pretrain", folder.path("recipe.json"), "--set", "optimizer.learning_rate=1e30"});
  EXPECT_EQ(ruined.wait(), 1);
  EXPECT_THAT(ruined.err(), HasSubstr("bad-step-"));
  const Process usage(folder, {"pretrain"});
  EXPECT_EQ(usage.wait(), 2);
}

}  // namespace
}  // namespace tandem::train

// The bundled model through the command line: what the README and ./dev demo show.
#include <gtest/gtest.h>

#include "app/cli.h"
#include "base/cat.h"

namespace tandem::test {
namespace {

std::string ask_nano(const std::string& question) {
  const CliResult result =
      run_cli({"run", config_path("../models/nano"), question, "--chat", "--temperature", "0", "--max-tokens", "200"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

TEST(Nano, Adds) { EXPECT_NE(ask_nano("What is 17 plus 25?").find("17 plus 25 is 42."), std::string::npos); }

TEST(Nano, SaysWhoItIs) { EXPECT_NE(ask_nano("Who are you?").find("I am nano"), std::string::npos); }

TEST(Nano, RecallsAFactFromBeforeAText) {
  std::string text = "Mira's locker code is 4821.\n\n";
  for (int i = 0; i < 12; ++i) text += "The road to the harbour is long, but the view over the water is worth it. ";
  EXPECT_NE(ask_nano(cat(text, "\n\nWhat is Mira's locker code?")).find("locker code is 4821."), std::string::npos);
}

}  // namespace
}  // namespace tandem::test

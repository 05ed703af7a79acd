// `tandem serve` as a program: its flags, the file they may come from, start and stop. What it answers is tested in
// tests/server, and with a real client library in tests/clients.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "app/cli.h"

namespace tandem::test {
namespace {

using Json = nlohmann::json;

TEST(ServeCommand, SaysWhereItListensAndStopsOnASignal) {
  const TempFolder dir;
  const std::string config = dir.write("serve.toml", "port = 0\nserved-model-name = [\"a\", \"b\"]\njson = true\n");
  // The signal is held from the first moment, so it cannot come too early.
  const CliResult result =
      run_cli({"serve", config_path("../models/nano"), "--config", config}, {.interrupt_after_ms = 1500});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json line = Json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(line.is_object()) << result.out;
  EXPECT_TRUE(line["url"].get<std::string>().starts_with("http://127.0.0.1:")) << result.out;
  EXPECT_EQ(line["models"], Json({"a", "b"}));
  EXPECT_GT(line["cache_blocks"], 0);
  EXPECT_NE(result.err.find("stopping"), std::string::npos) << result.err;
}

TEST(ServeCommand, TheCommandLineHasTheLastWord) {
  const TempFolder dir;
  const std::string config = dir.write("serve.toml", "port = 0\nserved-model-name = \"file\"\n");
  const CliResult result =
      run_cli({"serve", config_path("../models/nano"), "--config", config, "--served-model-name", "flag", "--json"},
              {.interrupt_after_ms = 1500});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Json::parse(result.out)["models"], Json({"flag"}));
}

TEST(ServeCommand, AWrongFileOfFlagsIsNamedWithItsKey) {
  const TempFolder dir;
  const struct {
    const char* text;
    const char* key;
  } cases[] = {{"prot = 3\n", "prot"},
               {"port = \"x\"\n", "port"},
               {"verify-cache = 7\n", "verify-cache"},
               {"quiet = maybe\n", "maybe"},
               {"[section]\nport = 3\n", "section.port"},
               {"help = true\n", "help"},
               {"cache-size = \"3 apples\"\n", "3 apples"}};
  for (const auto& c : cases) {
    const std::string config = dir.write("serve.toml", c.text);
    expect_refused(run_cli({"serve", config_path("../models/nano"), "--config", config}), 1, {c.key});
  }
  expect_refused(run_cli({"serve", "--config", dir.path("none.toml")}), 1, {"none.toml"});
}

TEST(ServeCommand, Refusals) {
  const TempFolder dir;
  const std::string model = config_path("../models/nano");
  expect_refused(run_cli({"serve", dir.path("none")}), 1, {"none"});
  expect_refused(run_cli({"serve", model, "--port", "70000"}), 2, {"--port"});
  expect_refused(run_cli({"serve", model, "--host", "example.com"}), 1, {"example.com"});
  expect_refused(run_cli({"serve", model, "--verify-cache", "1.5"}), 2, {"--verify-cache"});
  expect_refused(run_cli({"serve", model, "--cache-size", "5XB"}), 1, {"--cache-size", "5XB"});
  expect_refused(run_cli({"serve", model, "--cache-size", "1KB"}), 1, {"cache"});
  expect_refused(run_cli({"serve", model, "--api-key-file", dir.write("keys", "# none\n")}), 1, {"keys"});
  expect_refused(run_cli({"serve", model, "--served-model-name", ""}), 1, {"--served-model-name"});
  expect_refused(run_cli({"serve", model, "--verify-dump", dir.write("file", "x")}), 1, {"--verify-dump"});
}

}  // namespace
}  // namespace tandem::test

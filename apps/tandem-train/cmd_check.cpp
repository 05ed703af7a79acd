// apps/tandem-train/cmd_check.cpp: `tandem-train check`: whether a device computes what the CPU computes in double.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "train/modules/device_check.h"

namespace tandem::app {
namespace {

struct CheckFlags {
  std::string device = "cpu";
  bool bench = false;
  bool json = false;
  int64_t tokens = 131072;
  int64_t document = 1024;
};

int run_bench(const CheckFlags& flags, at::Device device) {
  const double bandwidth = train::copy_bandwidth(device);
  const train::BenchShape shape{flags.tokens, flags.document};
  nlohmann::json rows = nlohmann::json::array();
  if (!flags.json) {
    std::printf("copy: %.0f GB/s read and written; %lld tokens in documents of %lld\n", bandwidth / 1e9,
                static_cast<long long>(shape.tokens), static_cast<long long>(shape.document));
    std::printf("%-34s %11s %11s %9s %8s %12s\n", "operator", "forward ms", "backward ms", "floor ms", "of copy",
                "tokens/s");
  }
  train::bench_device(device, shape, [&](const train::BenchResult& result) {
    const double total = result.forward_ms + result.backward_ms;
    const double floor_ms = result.floor_bytes / bandwidth * 1e3;
    const double rate = static_cast<double>(shape.tokens) / total * 1e3;
    if (flags.json) {
      rows.push_back({{"name", result.name},
                      {"forward_ms", result.forward_ms},
                      {"backward_ms", result.backward_ms},
                      {"floor_ms", floor_ms},
                      {"tokens_per_second", rate}});
      return;
    }
    std::printf("%-34s %11.3f %11.3f %9.3f %7.0f%% %12.0f\n", result.name.c_str(), result.forward_ms,
                result.backward_ms, floor_ms, 100 * floor_ms / total, rate);
    std::fflush(stdout);
  });
  if (flags.json) {
    std::puts(nlohmann::json{{"copy_bytes_per_second", bandwidth}, {"operators", rows}}.dump().c_str());
  }
  return kExitOk;
}

int run_check(const CheckFlags& flags) {
  const at::Device device(flags.device);
  int failed = 0, checked = 0;
  nlohmann::json rows = nlohmann::json::array();
  const auto report = [&](const train::CheckResult& result) {
    ++checked;
    failed += result.passed() ? 0 : 1;
    if (flags.json) {
      rows.push_back({{"name", result.name},
                      {"error", result.error},
                      {"bound", result.bound},
                      {"passed", result.passed()},
                      {"worst", result.worst}});
      return;
    }
    std::printf("%-6s %-80s %9.2e of %8.2e  %s\n", result.passed() ? "ok" : "FAILED", result.name.c_str(), result.error,
                result.bound, result.passed() ? "" : result.worst.c_str());
    std::fflush(stdout);
  };
  train::check_operators(device, report);
  train::check_models(device, report);
  if (flags.json) {
    std::puts(nlohmann::json{{"checked", checked}, {"failed", failed}, {"results", rows}}.dump().c_str());
  } else {
    std::printf("%d of %d checks failed\n", failed, checked);
  }
  const int bench = flags.bench ? run_bench(flags, device) : kExitOk;
  return failed > 0 ? kExitFailed : bench;
}

}  // namespace

void register_check(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "check", "Compare every operator and small models on a device with double precision on the CPU.");
  auto flags = std::make_shared<CheckFlags>();
  command->add_option("--device", flags->device, "cpu, cuda or cuda:1")
      ->capture_default_str()
      ->check(CLI::Validator(
          [](const std::string& name) {
            const bool known = name == "cpu" || name == "cuda" || name.rfind("cuda:", 0) == 0;
            return known ? std::string() : "expected cpu, cuda or cuda:<index>, found " + name;
          },
          ""));
  command->add_flag("--bench", flags->bench, "Then time every operator and a 13-layer model");
  command->add_flag("--json", flags->json, "Print JSON");
  command->add_option("--tokens", flags->tokens, "Tokens of a timed batch")->capture_default_str();
  command->add_option("--document", flags->document, "Tokens of one of its documents")->capture_default_str();
  command->footer("Example:\n  tandem-train check --device cuda --bench");
  command->callback([flags, &exit_code] { exit_code = run_check(*flags); });
}

}  // namespace tandem::app

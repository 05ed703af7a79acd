// apps/tandem-train/cmd_check.cpp: `tandem-train check`: whether a device computes what the CPU computes in double.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/result.h"
#include "command.h"
#include "train/modules/device_check.h"
#include "train/modules/train_model.h"
#include "train/run/device_choice.h"

namespace tandem::app {
namespace {

struct CheckFlags {
  std::string device = "cpu";
  bool bench = false;
  bool json = false;
  std::string model = "configs/nano.json";
  int64_t tokens = 131072;
  int64_t document = 1024;
};

Result<ModelConfig> model_to_bench(const std::string& path) {
  Result<ModelConfig> config = load_model_config_file(path);
  if (config.is_ok()) TANDEM_RETURN_IF_ERROR(train::check_mtp(config.value()));
  return config;
}

int run_bench(const CheckFlags& flags, at::Device device, const ModelConfig& config) {
  const double bandwidth = train::copy_bandwidth(device);
  const train::BenchShape shape{config, flags.tokens, flags.document};
  nlohmann::json rows = nlohmann::json::array();
  if (!flags.json) {
    std::printf("%s; copy: %.0f GB/s read and written; %lld tokens in documents of %lld\n", flags.model.c_str(),
                bandwidth / 1e9, static_cast<long long>(shape.tokens), static_cast<long long>(shape.document));
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
    std::puts(nlohmann::json{{"model", flags.model},
                             {"tokens", shape.tokens},
                             {"document", shape.document},
                             {"copy_bytes_per_second", bandwidth},
                             {"operators", rows}}
                  .dump()
                  .c_str());
  }
  return kExitOk;
}

int run_check(const CheckFlags& flags) {
  const Result<at::Device> chosen = train::choose_device(flags.device);
  if (!chosen.is_ok()) return report_error(chosen.status());
  const at::Device device = chosen.value();
  ModelConfig timed;
  if (flags.bench) {
    Result<ModelConfig> config = model_to_bench(flags.model);
    if (!config.is_ok()) return report_error(config.status());
    timed = std::move(config).value();
  }
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
  const int bench = flags.bench ? run_bench(flags, device, timed) : kExitOk;
  return failed > 0 ? kExitFailed : bench;
}

}  // namespace

void register_check(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "check", "Compare every operator and small models on a device with double precision on the CPU.");
  auto flags = std::make_shared<CheckFlags>();
  command->add_option("--device", flags->device, "auto, cpu, cuda or cuda:<number>")->capture_default_str();
  CLI::Option* bench = command->add_flag("--bench", flags->bench, "Then time every operator, the layers and the model");
  command->add_option("--model", flags->model, "config.json of the model whose shapes are timed")
      ->needs(bench)
      ->capture_default_str();
  command->add_flag("--json", flags->json, "Print JSON");
  command->add_option("--tokens", flags->tokens, "Tokens of a timed batch")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  command->add_option("--document", flags->document, "Tokens of one of its documents")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  command->footer("Example:\n  tandem-train check --device cuda --bench --model configs/nano.json");
  command->callback([flags, &exit_code] { exit_code = run_check(*flags); });
}

}  // namespace tandem::app

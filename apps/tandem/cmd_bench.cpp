// tandem bench: prefill and decode rates against this machine's ceilings, measured in the same run.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <numeric>

#include "command.h"
#include "engine/bench.h"
#include "engine/memory_info.h"
#include "kernels/ceiling/ceiling.h"
#include "model_flags.h"

namespace tandem::app {
namespace {

struct BenchFlags {
  CommonFlags common;
  ModelFlags model;
  BenchOptions options;
  bool breakdown = false;
};

std::array<double, kNumPhases> phase_shares(const PhaseTimes& phases) {
  const auto total = static_cast<double>(std::accumulate(phases.ns.begin(), phases.ns.end(), int64_t{0}));
  std::array<double, kNumPhases> shares{};
  for (int i = 0; i < kNumPhases && total > 0; ++i) {
    shares[static_cast<size_t>(i)] = static_cast<double>(phases.ns[static_cast<size_t>(i)]) / total;
  }
  return shares;
}

double percent(double part, double whole) { return whole > 0 ? 100.0 * part / whole : 0.0; }

void print_json(const BenchFlags& flags, const BenchCase& result, const MachineCeilings& ceilings, double predicted) {
  nlohmann::ordered_json line = {{"phase", result.is_prefill ? "prefill" : "decode"},
                                 {"tokens", result.tokens},
                                 {"depth", result.depth},
                                 {"sequences", result.sequences},
                                 {"tok_s", result.tok_s},
                                 {"min", result.min_tok_s},
                                 {"max", result.max_tok_s},
                                 {"predicted_tok_s", predicted},
                                 {"measured_over_predicted", predicted > 0 ? result.tok_s / predicted : 0.0},
                                 {"bytes_per_token", result.bytes_per_token},
                                 {"flops_per_token", result.flops_per_token},
                                 {"read_gb_s", result.read_gb_s},
                                 {"gflop_s", result.gflop_s},
                                 {"ceiling_read_gb_s", ceilings.read_gb_s},
                                 {"ceiling_f32_gflop_s", ceilings.f32_gflop_s},
                                 {"percent_of_read_ceiling", percent(result.read_gb_s, ceilings.read_gb_s)},
                                 {"percent_of_f32_ceiling", percent(result.gflop_s, ceilings.f32_gflop_s)},
                                 {"threads", resolve_num_threads(flags.common)},
                                 {"peak_rss_bytes", peak_resident_bytes()}};
  if (flags.breakdown) {
    const auto shares = phase_shares(result.phases);
    for (size_t i = 0; i < kNumPhases; ++i) line["breakdown"][std::string(kPhaseNames[i])] = shares[i];
  }
  fmt::print("{}\n", line.dump());
}

void print_text(const BenchFlags& flags, const BenchCase& result, const MachineCeilings& ceilings) {
  fmt::print("{:<8} {:>6} {:>6} {:>5} {:>9.1f} {:>9.1f} {:>9.1f} {:>10.1f} {:>7.1f} {:>6.1f}% {:>8.1f} {:>6.1f}%\n",
             result.is_prefill ? "prefill" : "decode", result.tokens, result.depth, result.sequences, result.tok_s,
             result.min_tok_s, result.max_tok_s, result.bytes_per_token / 1e6, result.read_gb_s,
             percent(result.read_gb_s, ceilings.read_gb_s), result.gflop_s,
             percent(result.gflop_s, ceilings.f32_gflop_s));
  if (!flags.breakdown) return;
  const auto shares = phase_shares(result.phases);
  for (size_t i = 0; i < kNumPhases; ++i) fmt::print("  {} {:.1f}%", kPhaseNames[i], 100.0 * shares[i]);
  fmt::print("\n");
}

int run_bench_command(const BenchFlags& flags) {
  Result<std::unique_ptr<LoadedModel>> model = load_model(flags.model, flags.common);
  if (!model.is_ok()) return report_error(model.status());
  const MachineCeilings ceilings = measure_ceilings(model.value()->exec());
  if (!flags.common.json) {
    fmt::print("ceilings: read {:.1f} GB/s, f32 {:.1f} GFLOP/s ({} threads)\n", ceilings.read_gb_s,
               ceilings.f32_gflop_s, resolve_num_threads(flags.common));
    fmt::print("{:<8} {:>6} {:>6} {:>5} {:>9} {:>9} {:>9} {:>10} {:>7} {:>7} {:>8} {:>7}\n", "phase", "tokens", "depth",
               "seqs", "tok/s", "min", "max", "MB/token", "GB/s", "of max", "GFLOP/s", "of max");
  }
  const ModelCost cost = bench_cost(*model.value());
  Machine machine;
  machine.memory_rate = ceilings.read_gb_s * 1e9;
  machine.flops_rate = ceilings.f32_gflop_s * 1e9;
  const Status status = run_bench(*model.value(), flags.options, [&](const BenchCase& result) {
    if (flags.common.json) {
      print_json(flags, result, ceilings, predicted_tok_s(cost, result, flags.options.prefill_chunk, machine));
    } else {
      print_text(flags, result, ceilings);
    }
    std::fflush(stdout);
  });
  return status.is_ok() ? kExitOk : report_error(status);
}

}  // namespace

void register_bench(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = app.add_subcommand("bench", "Measure prefill and decode rates");
  add_model_flags(command, flags->model, flags->common);
  command->add_option("-p,--prompt-tokens", flags->options.prompt_tokens, "tokens of the prefill case; 0 skips it")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->capture_default_str();
  command->add_option("-n,--decode-tokens", flags->options.decode_tokens, "tokens of a decode case; 0 skips it")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->capture_default_str();
  command->add_option("--depth", flags->options.depths, "tokens already in the cache, one decode case each")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->capture_default_str();
  command
      ->add_option("--sequences", flags->options.sequences,
                   "decoded together in one step, decode cases for each number")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  command->add_option("--repeat", flags->options.repeat, "runs of each case")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->capture_default_str();
  command->add_option("--prefill-chunk", flags->options.prefill_chunk, "tokens of one prefill step")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->capture_default_str();
  command->add_flag("--breakdown", flags->breakdown, "share of KDA, MLA, AttnRes, MoE, head …");
  command->footer("Example:\n  tandem bench models/k3-mini -p 512 -n 128 --depth 0,2048 --sequences 1,16 --repeat 5");
  command->callback([flags, &exit_code] { exit_code = run_bench_command(*flags); });
}

}  // namespace tandem::app

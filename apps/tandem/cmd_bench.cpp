// tandem bench: prefill and decode rates against this machine's ceilings, measured in the same run.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "command.h"
#include "engine/bench.h"
#include "engine/memory_info.h"
#include "kernels/ceiling/ceiling.h"
#include "model_flags.h"
#include "stream/drive_speed.h"
#include "stream_output.h"

namespace tandem::app {
namespace {

constexpr double kDriveSeconds = 2.0;

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

// The reads of a case against what the drive gives in the same run.
nlohmann::ordered_json stream_of(const BenchCase& result, const ExpertStore& experts, double drive_gb_s) {
  nlohmann::ordered_json stream = stream_json(*result.stream, experts.num_slots(), experts.num_experts());
  const double read_gb_s =
      result.seconds > 0 ? static_cast<double>(result.stream->bytes_read) / result.seconds / 1e9 : 0;
  stream["reader"] = experts.reader().description();
  stream["seconds"] = result.seconds;
  stream["read_gb_s"] = read_gb_s;
  stream["drive_random_read_gb_s"] = drive_gb_s;
  stream["percent_of_drive"] = percent(read_gb_s, drive_gb_s);
  // What the steps needed and did not have, at the drive's speed, is the least time a case can take.
  const uint64_t bytes_needed =
      result.stream->bytes_read - std::min(result.stream->bytes_read, result.stream->bytes_unused);
  stream["bound_s"] = drive_gb_s > 0 ? static_cast<double>(bytes_needed) / drive_gb_s / 1e9 : 0.0;
  stream["percent_of_bound"] = percent(stream["bound_s"].get<double>(), result.seconds);
  return stream;
}

// Reads of an expert's size at places of chance, as the stream reads.
Result<double> drive_gb_s(const LoadedModel& model) {
  DirectReaderOptions options = model.experts()->reader().options();
  const Result<DriveSpeed> speed =
      measure_drive_speed(model.experts()->reader().paths(), model.experts()->slot_bytes(), kDriveSeconds, options);
  if (!speed.is_ok()) return speed.status();
  return speed.value().bytes_per_second / 1e9;
}

void print_json(const BenchFlags& flags, const BenchCase& result, const MachineCeilings& ceilings,
                const LoadedModel& model, double drive) {
  nlohmann::ordered_json line = {{"phase", result.is_prefill ? "prefill" : "decode"},
                                 {"tokens", result.tokens},
                                 {"depth", result.depth},
                                 {"sequences", result.sequences},
                                 {"tok_s", result.tok_s},
                                 {"min", result.min_tok_s},
                                 {"max", result.max_tok_s},
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
  if (result.stream) line["stream"] = stream_of(result, *model.experts(), drive);
  fmt::print("{}\n", line.dump());
}

void print_text(const BenchFlags& flags, const BenchCase& result, const MachineCeilings& ceilings, double drive) {
  fmt::print("{:<8} {:>6} {:>6} {:>5} {:>9.1f} {:>9.1f} {:>9.1f} {:>10.1f} {:>7.1f} {:>6.1f}% {:>8.1f} {:>6.1f}%\n",
             result.is_prefill ? "prefill" : "decode", result.tokens, result.depth, result.sequences, result.tok_s,
             result.min_tok_s, result.max_tok_s, result.bytes_per_token / 1e6, result.read_gb_s,
             percent(result.read_gb_s, ceilings.read_gb_s), result.gflop_s,
             percent(result.gflop_s, ceilings.f32_gflop_s));
  if (result.stream) {
    const double read = result.seconds > 0 ? static_cast<double>(result.stream->bytes_read) / result.seconds / 1e9 : 0;
    fmt::print("  {}\n  {:.2f} GB/s over the whole case, {:.1f}% of the drive's {:.2f}\n", stream_line(*result.stream),
               read, percent(read, drive), drive);
  }
  if (!flags.breakdown) return;
  const auto shares = phase_shares(result.phases);
  for (size_t i = 0; i < kNumPhases; ++i) fmt::print("  {} {:.1f}%", kPhaseNames[i], 100.0 * shares[i]);
  fmt::print("\n");
}

int run_bench_command(const BenchFlags& flags) {
  const MemoryOptions needs = {
      .step_rows = flags.options.prefill_chunk,
      .step_sequences = *std::max_element(flags.options.sequences.begin(), flags.options.sequences.end())};
  Result<std::unique_ptr<LoadedModel>> model = load_model(flags.model, flags.common, needs);
  if (!model.is_ok()) return report_error(model.status());
  const bool streamed = model.value()->experts() != nullptr;
  // A streamed model has no memory to spare for the ceilings' buffers, and its ceiling is the drive.
  const MachineCeilings ceilings = streamed ? MachineCeilings{} : measure_ceilings(model.value()->exec());
  if (!flags.common.json) {
    fmt::print("ceilings: read {:.1f} GB/s, f32 {:.1f} GFLOP/s ({} threads)\n", ceilings.read_gb_s,
               ceilings.f32_gflop_s, resolve_num_threads(flags.common));
    fmt::print("{:<8} {:>6} {:>6} {:>5} {:>9} {:>9} {:>9} {:>10} {:>7} {:>7} {:>8} {:>7}\n", "phase", "tokens", "depth",
               "seqs", "tok/s", "min", "max", "MB/token", "GB/s", "of max", "GFLOP/s", "of max");
  }
  Status failed;
  Result<double> before = streamed ? drive_gb_s(*model.value()) : Result<double>(0.0);
  if (!before.is_ok()) return report_error(before.status());
  const Status status = run_bench(*model.value(), flags.options, [&](const BenchCase& result) {
    // The drive before and after the case: many drives of rented machines give less once they have given much.
    Result<double> after = streamed ? drive_gb_s(*model.value()) : Result<double>(0.0);
    if (!after.is_ok()) failed = after.status();
    const double drive = after.is_ok() ? (before.value() + after.value()) / 2 : before.value();
    if (after.is_ok()) before = after;
    flags.common.json ? print_json(flags, result, ceilings, *model.value(), drive)
                      : print_text(flags, result, ceilings, drive);
    std::fflush(stdout);
  });
  if (status.is_ok() && !failed.is_ok()) return report_error(failed);
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

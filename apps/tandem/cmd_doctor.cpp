// tandem doctor: whether this machine and this checkpoint are right, a verdict for each check.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <memory>
#include <optional>
#include <string>

#include "command.h"
#include "engine/doctor/doctor.h"
#include "progress_line.h"
#include "size_text.h"

namespace tandem::app {
namespace {

constexpr size_t kMaxDetails = 50;  // of one check, for a person

struct DoctorFlags {
  CommonFlags common;
  DoctorOptions options;
  std::string disk_size;
  std::string ram;
};

std::atomic<bool> interrupted{false};  // by a signal: hashing stops, a second one ends the program

void handle_interrupt(int signal) {
  interrupted.store(true);
  std::signal(signal, SIG_DFL);
}

int run(DoctorFlags& flags) {
  DoctorOptions& options = flags.options;
  const Result<ThreadPlacement> threads = resolve_threads(flags.common);
  if (!threads.is_ok()) return report_error(threads.status());
  options.threads = threads.value();
  const Result<std::optional<KernelBackend>> kernels = parse_kernel_backend(flags.common.kernels);
  if (!kernels.is_ok()) return report_error(kernels.status());
  options.kernels = kernels.value();
  if (!flags.disk_size.empty()) options.disk_bytes = parse_size(flags.disk_size).value_or(options.disk_bytes);
  if (!flags.ram.empty()) {
    const Result<int64_t> bytes = size_flag("--ram", flags.ram);
    if (!bytes.is_ok()) return report_error(bytes.status());
    options.ram_bytes = bytes.value();
  }
  options.cancel = &interrupted;
  std::signal(SIGINT, handle_interrupt);
  ProgressLine line;
  const Result<DoctorReport> report = run_doctor(
      options,
      [&](const DoctorCheck& check) {
        line.clear();
        if (flags.common.json) return;
        fmt::print("{}", doctor_check_text(check, kMaxDetails));
        std::fflush(stdout);
      },
      [&](const std::string& doing) {
        if (line.is_due()) line.show(doing);
      });
  if (!report.is_ok()) return report_error(report.status());
  fmt::print("{}", flags.common.json ? doctor_json(report.value()) + "\n" : doctor_summary_text(report.value()));
  return report.value().has_failed() ? kExitFailed : kExitOk;
}

}  // namespace

void register_doctor(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("doctor", "Check this machine and a checkpoint, a verdict for each point.");
  auto flags = std::make_shared<DoctorFlags>();  // shared with the callback, which outlives this function
  DoctorOptions& options = flags->options;
  command->add_option("MODEL", options.model, "model folder, or a bare config.json (default: the machine alone)");
  add_common_flags(command, flags->common);
  const std::vector<std::string> areas(std::begin(kDoctorAreas), std::end(kDoctorAreas));
  command->add_option("--skip", options.skip, "areas to leave out: cpu, memory, disk, checkpoint, sizing, self_test")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember(areas));
  command->add_option("--disk", options.disk_path,
                      "measure this file, or the drive of this folder with a file of its own, not MODEL's shards");
  command->add_option("--disk-size", flags->disk_size, "size of that file (default 1GiB)")
      ->check([](const std::string& text) {
        return parse_size(text) ? std::string() : "expected a size such as 500MB or 4GiB, found " + text;
      });
  command->add_option("--ram", flags->ram,
                      "memory of the whole process in the self-test: a model that does not fit is streamed from disk");
  command->add_flag("--hash", options.hash, "read every file and compare its SHA-256 with the folder's references");
  command->add_flag("--write-hashes", options.write_hashes, "hash every file and write MODEL/SHA256SUMS");
  command->add_option("--golden", options.self_test.golden_path,
                      "logits to compare with (default: MODEL/golden_logits.safetensors when it is there)");
  command->add_option("--write-golden", options.write_golden, "write this machine's logits for the self-test's tokens");
  command->add_option("--reference-rows", options.self_test.reference_rows, "tokens run by the reference kernels")
      ->check(CLI::Range(int64_t{1}, int64_t{16}))
      ->capture_default_str();
  command->footer(
      "Exits with 1 when a check has failed; warnings say what could be better.\n\nExamples:\n"
      "  tandem doctor                                     the machine alone\n"
      "  tandem doctor models/my-k3 --hash                 and the checkpoint, every byte of it\n"
      "  tandem doctor models/my-k3 --skip disk,memory --json\n"
      "  tandem doctor models/k3 --ram 200GB               a model larger than memory, streamed\n"
      "  tandem doctor --skip cpu,memory --disk /mnt/nvme  how fast a drive gives blocks");
  command->callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace tandem::app

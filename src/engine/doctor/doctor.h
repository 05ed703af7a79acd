// engine/doctor/doctor.h: whether this machine and this checkpoint are right: every check that `tandem doctor` makes,
// in order, each told as it is done.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_placement.h"
#include "engine/doctor/disk_probe.h"
#include "engine/doctor/doctor_check.h"
#include "engine/doctor/machine_checks.h"
#include "engine/self_test.h"

namespace tandem {

inline constexpr std::string_view kDoctorAreas[] = {"cpu", "memory", "disk", "checkpoint", "sizing", "self_test"};

struct DoctorOptions {
  std::string model;      // folder or bare config.json; empty: the machine alone
  std::string disk_path;  // instead of the model's files: a file that is read, or a folder for a file of our own
  uint64_t disk_bytes = uint64_t{1} << 30;  // of that file
  ThreadPlacement threads;
  std::optional<KernelBackend> kernels;  // none: the best of this CPU
  std::optional<int64_t> ram_bytes;      // of the process in the self-test: what does not fit is streamed from disk
  std::vector<std::string> skip;         // areas
  bool hash = false;
  bool write_hashes = false;
  std::string write_golden;  // path; empty: none is written
  SelfTestOptions self_test;
  DiskProbeOptions disk;
  const std::atomic<bool>* cancel = nullptr;  // stops the hashing
};

struct DoctorReport {
  std::vector<DoctorCheck> checks;
  int64_t count(Verdict verdict) const;
  bool has_failed() const { return count(Verdict::kFailed) > 0; }
};

// `progress` hears what takes long. kUnsupported when the CPU lacks the kernels asked for: nothing is checked then.
Result<DoctorReport> run_doctor(const DoctorOptions& options, FunctionRef<void(const DoctorCheck&)> tell,
                                FunctionRef<void(const std::string&)> progress);

// Lines of one check; of its details the first `max_details`.
std::string doctor_check_text(const DoctorCheck& check, size_t max_details);
std::string doctor_summary_text(const DoctorReport& report);
std::string doctor_json(const DoctorReport& report);  // one document, every detail in it

}  // namespace tandem

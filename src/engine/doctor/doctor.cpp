#include "engine/doctor/doctor.h"

#include <algorithm>
#include <filesystem>

#include "base/cat.h"
#include "engine/doctor/checkpoint_checks.h"
#include "engine/doctor/disk_checks.h"
#include "engine/doctor/size_words.h"
#include "engine/doctor/sizing_check.h"

namespace tandem {
namespace {

class Doctor {
 public:
  Doctor(const DoctorOptions& options, const KernelTable& kernels, FunctionRef<void(const DoctorCheck&)> tell,
         FunctionRef<void(const std::string&)> progress)
      : options_(options), kernels_(kernels), tell_(tell), progress_(progress), facts_(read_machine_facts()) {}

  DoctorReport run() {
    const auto tell = [this](DoctorCheck check) { add(std::move(check)); };
    if (does("cpu")) {
      const KernelBackend best = available_backends(detect_cpu_features()).back();
      check_cpu(facts_, kernels_.backend, best, options_.threads, tell);
    }
    if (does("memory")) {
      check_memory_size(facts_, tell);
      progress_("measuring memory bandwidth");
      check_memory_speed(facts_, kernels_, options_.threads, tell);
    }
    // The headers are read whatever is skipped: everything below needs them.
    CheckpointFacts checkpoint;
    if (!options_.model.empty()) {
      const auto tell_if_wanted = [this](DoctorCheck check) {
        if (does("checkpoint")) add(std::move(check));
      };
      progress_("reading the shard headers");
      checkpoint = check_checkpoint_folder(options_.model, tell_if_wanted);
      if (does("checkpoint") && is_folder()) {
        ThreadPool pool(options_.threads.num_threads);
        check_hashes(options_.model, {options_.hash, options_.write_hashes, options_.cancel}, pool, tell, progress_);
      }
    }
    if (does("disk")) check_disk(checkpoint, tell);
    if (does("sizing") && checkpoint.config && checkpoint.tensors) {
      check_sizing(count_model_bytes(*checkpoint.config, *checkpoint.tensors), available_bytes(), random_gb_s_, tell);
    }
    if (does("self_test") && !options_.model.empty()) test(checkpoint);
    return std::move(report_);
  }

 private:
  bool does(std::string_view area) const { return std::ranges::find(options_.skip, area) == options_.skip.end(); }
  bool is_folder() const {
    std::error_code error;
    return std::filesystem::is_directory(options_.model, error);
  }

  int64_t available_bytes() const { return options_.ram_bytes.value_or(facts_.available_memory_bytes); }

  void add(DoctorCheck check) {
    tell_(check);
    report_.checks.push_back(std::move(check));
  }
  void add(std::string_view area, std::string_view name, Verdict verdict, std::string message) {
    add({.area = std::string(area), .name = std::string(name), .verdict = verdict, .message = std::move(message)});
  }

  void check_disk(const CheckpointFacts& checkpoint, TellCheck tell) {
    DiskProbeOptions probe = options_.disk;
    probe.block_bytes = probe_block_bytes(checkpoint.config);
    std::vector<std::string> files;
    std::error_code error;
    std::optional<ProbeFile> own;
    if (std::filesystem::is_directory(options_.disk_path, error)) {
      progress_("writing a file to read");
      Result<ProbeFile> file = ProbeFile::create(options_.disk_path, options_.disk_bytes);
      if (!file.is_ok()) return add("disk", "read", Verdict::kFailed, file.status().message());
      own.emplace(std::move(file).value());
      files.push_back(own->path());
    } else if (!options_.disk_path.empty()) {
      files.push_back(options_.disk_path);
    } else if (checkpoint.checkpoint) {
      for (int64_t shard = 0; shard < checkpoint.checkpoint->num_shards(); ++shard) {
        files.push_back(cat(options_.model, "/", checkpoint.checkpoint->shard_name(static_cast<uint32_t>(shard))));
      }
    }
    if (files.empty()) {
      return add("disk", "read", Verdict::kSkipped, "there are no shards to read; --disk FOLDER measures its drive");
    }
    random_gb_s_ = check_disks(files, probe, tell, progress_);
  }

  void test(const CheckpointFacts& checkpoint) {
    const auto skip = [this](std::string why) { add("self_test", "load", Verdict::kSkipped, std::move(why)); };
    if (!checkpoint.can_run()) return skip("the checkpoint is not whole: see above");
    const ModelBytes bytes = count_model_bytes(*checkpoint.config, *checkpoint.tensors);
    if (!options_.ram_bytes && available_bytes() > 0 && bytes.whole() > available_bytes()) {
      return skip(cat("the model takes ", bytes_text(bytes.whole()), " and ", bytes_text(available_bytes()),
                      " of memory can be used: every step of the test would read experts from the drive, and the whole "
                      "may take hours; --ram SIZE runs it within that"));
    }
    progress_("running the self-test");
    LoadOptions load;
    load.kernels = options_.kernels;
    load.num_threads = options_.threads.num_threads;
    load.cpus = options_.threads.cpus;
    load.memory = self_test_memory(*checkpoint.config, options_.self_test);
    load.memory.ram_bytes = options_.ram_bytes;
    const Result<std::unique_ptr<LoadedModel>> model = LoadedModel::load(options_.model, load);
    if (!model.is_ok() && options_.ram_bytes && model.status().code() == StatusCode::kResourceExhausted) {
      return skip(model.status().message());
    }
    if (!model.is_ok()) return add("self_test", "load", Verdict::kFailed, model.status().message());
    if (const StreamedWeights* streamed = model.value()->streamed()) {
      add("self_test", "load", Verdict::kOk, streamed->summary());
    }
    run_self_test(*model.value(), options_.self_test, [this](DoctorCheck check) { add(std::move(check)); });
    if (options_.write_golden.empty()) return;
    if (report_.has_failed()) {
      return add("self_test", "write_golden", Verdict::kSkipped, "a check has failed: no golden file is written");
    }
    const Status written = write_self_test_golden(*model.value(), options_.self_test, options_.write_golden);
    add("self_test", "write_golden", written.is_ok() ? Verdict::kOk : Verdict::kFailed,
        written.is_ok() ? cat("wrote ", options_.write_golden) : written.message());
  }

  const DoctorOptions& options_;
  const KernelTable& kernels_;
  FunctionRef<void(const DoctorCheck&)> tell_;
  FunctionRef<void(const std::string&)> progress_;
  const MachineFacts facts_;
  double random_gb_s_ = 0.0;
  DoctorReport report_;
};

}  // namespace

int64_t DoctorReport::count(Verdict verdict) const {
  return std::ranges::count(checks, verdict, &DoctorCheck::verdict);
}

Result<DoctorReport> run_doctor(const DoctorOptions& options, FunctionRef<void(const DoctorCheck&)> tell,
                                FunctionRef<void(const std::string&)> progress) {
  const Result<KernelTable> kernels = make_kernel_table(detect_cpu_features(), options.kernels);
  if (!kernels.is_ok()) return kernels.status();
  return Doctor(options, kernels.value(), tell, progress).run();
}

}  // namespace tandem

#include "engine/doctor/disk_checks.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/cat.h"
#include "engine/doctor/file_system_info.h"
#include "engine/doctor/size_words.h"
#include "weights/tensor_names.h"

namespace tandem {
namespace {

constexpr double kSparse = 0.9;  // stored less than that: holes, or a compressing file system

DoctorCheck disk_check(std::string_view name) { return {.area = "disk", .name = std::string(name)}; }

struct Volume {
  FileSystemInfo info;
  std::vector<std::string> files;
};

void tell_file_system(const Volume& volume, TellCheck tell) {
  const FileSystemInfo& info = volume.info;
  DoctorCheck check = disk_check("file_system");
  check.values = {{"mount", info.mount.point},
                  {"type", info.mount.type},
                  {"source", info.mount.source},
                  {"free_bytes", static_cast<int64_t>(info.free_bytes)},
                  {"total_bytes", static_cast<int64_t>(info.total_bytes)}};
  check.message = cat(volume.files.size(), volume.files.size() == 1 ? " file on " : " files on ",
                      info.mount.point.empty() ? "an unknown mount" : info.mount.point, " (",
                      info.mount.type.empty() ? "unknown type" : info.mount.type, ", ", info.mount.source, "), ",
                      bytes_text(info.free_bytes), " free of ", bytes_text(info.total_bytes));
  if (info.drive.link_gb_s) {
    check.values.emplace_back("link_gb_s", *info.drive.link_gb_s);
    check.message += cat(", a link of ", rounded(*info.drive.link_gb_s), " GB/s");
  }
  if (info.drive.rotational) check.values.emplace_back("rotational", *info.drive.rotational);
  if (info.is_network()) {
    check.verdict = Verdict::kWarning;
    check.message += ": a network's speed; copy the checkpoint to a drive of this machine";
  } else if (info.drive.rotational.value_or(false)) {
    check.verdict = Verdict::kWarning;
    check.message +=
        ": a rotating drive, or a virtual one that says so; experts are read at random, which such a drive "
        "does slowly";
  } else if (info.drive.rotational) {
    check.message += ", no rotating drive";
  }
  tell(std::move(check));
}

DoctorCheck probe_result(const DiskProbe& probe) {
  DoctorCheck check = disk_check("read");
  check.values = {{"method", probe.method},
                  {"block_bytes", static_cast<int64_t>(probe.block_bytes)},
                  {"sequential_gb_s", probe.sequential_gb_s},
                  {"random_gb_s", probe.random_gb_s},
                  {"best_queue_depth", int64_t{probe.best_queue_depth}},
                  {"trusted", probe.trusted}};
  for (const DiskPass& pass : probe.passes) {
    check.details.push_back(cat(pass.random ? "random" : "sequential", ", ", pass.queue_depth,
                                " in flight: ", rounded(pass.gb_s), " GB/s, repeated ", rounded(pass.repeat_gb_s),
                                " GB/s (", bytes_text(pass.bytes), ")"));
  }
  check.message = cat("random reads of ", bytes_text(probe.block_bytes), " give ", rounded(probe.random_gb_s),
                      " GB/s with ", probe.best_queue_depth, " in flight, sequential ones ",
                      rounded(probe.sequential_gb_s), " GB/s (", probe.method, ")");
  if (!probe.trusted) {
    check.verdict = Verdict::kWarning;
    check.message += cat("; not trusted: ", probe.distrust);
  }
  return check;
}

// The rate that can be counted on: none of a number that is not trusted.
double probe_volume(const Volume& volume, const DiskProbeOptions& options, TellCheck tell,
                    FunctionRef<void(const std::string&)> progress) {
  const auto skip = [&](std::string why) {
    DoctorCheck check = disk_check("read");
    check.verdict = Verdict::kSkipped;
    check.message = std::move(why);
    tell(std::move(check));
    return 0.0;
  };
  if (volume.info.is_memory()) return skip(cat(volume.info.mount.point, " is memory: there is no drive to measure"));
  std::vector<std::string> stored;
  for (const std::string& file : volume.files) {
    const Result<double> share = stored_share(file);
    if (share.is_ok() && share.value() >= kSparse) stored.push_back(file);
  }
  if (stored.empty()) {
    return skip(
        "the files are sparse or compressed: reading them says nothing about the drive; --disk FOLDER measures "
        "with a file of its own");
  }
  DiskProbeOptions with_link = options;
  with_link.link_gb_s = volume.info.drive.link_gb_s.value_or(0.0);
  const Result<DiskProbe> probe = probe_disk(stored, with_link, progress);
  if (!probe.is_ok()) {
    DoctorCheck check = disk_check("read");
    check.verdict = Verdict::kFailed;
    check.message = probe.status().message();
    tell(std::move(check));
    return 0.0;
  }
  if (probe.value().passes.empty()) {
    return skip(cat("the files are too small for a measurement with blocks of ", bytes_text(probe.value().block_bytes),
                    "; --disk FOLDER measures with a file of its own"));
  }
  tell(probe_result(probe.value()));
  return probe.value().trusted ? probe.value().random_gb_s : 0.0;
}

}  // namespace

uint64_t probe_block_bytes(const std::optional<ModelConfig>& config) {
  int64_t bytes = 0;
  int64_t layer = -1;
  if (config) {
    for_each_expected_tensor(*config, [&](const ExpectedTensor& tensor) {
      if (!tensor.run || tensor.expert != 0 || (layer >= 0 && tensor.layer != layer)) return;
      layer = tensor.layer;
      bytes += tensor.released_bytes();
    });
  }
  return bytes > 0 ? static_cast<uint64_t>(bytes) : uint64_t{1} << 20;
}

double check_disks(const std::vector<std::string>& files, const DiskProbeOptions& options, TellCheck tell,
                   FunctionRef<void(const std::string&)> progress) {
  std::vector<Volume> volumes;
  for (const std::string& file : files) {
    const Result<FileSystemInfo> info = describe_file_system(file);
    if (!info.is_ok()) {
      DoctorCheck check = disk_check("file_system");
      check.verdict = Verdict::kFailed;
      check.message = info.status().message();
      tell(std::move(check));
      continue;
    }
    const auto known =
        std::ranges::find_if(volumes, [&](const Volume& volume) { return volume.info.device == info.value().device; });
    if (known != volumes.end()) {
      known->files.push_back(file);
    } else {
      volumes.push_back({info.value(), {file}});
    }
  }
  double random_gb_s = 0.0;
  for (const Volume& volume : volumes) {
    tell_file_system(volume, tell);
    random_gb_s += probe_volume(volume, options, tell, progress);
  }
  return random_gb_s;
}

Result<ProbeFile> ProbeFile::create(const std::string& folder, uint64_t bytes) {
  const Result<FileSystemInfo> info = describe_file_system(folder);
  if (!info.is_ok()) return info.status();
  if (info.value().free_bytes < 2 * bytes) {
    return Status::exhausted(cat(folder, ": a probe needs a file of ", bytes_text(bytes),
                                 " and twice that free, found ", bytes_text(info.value().free_bytes)));
  }
  std::string path = cat(folder, "/tandem-disk-probe-XXXXXX");
  const int fd = ::mkstemp(path.data());
  if (fd < 0) return Status::io(cat(path, ": cannot be made: ", std::strerror(errno)));
  ProbeFile file(path);
  // Random bytes: a drive or a file system that compresses would answer for zeros.
  std::vector<uint64_t> piece(size_t{1} << 19);
  uint64_t state = 0x5eed;
  for (uint64_t at = 0; at < bytes;) {
    for (uint64_t& word : piece) word = state = state * 6364136223846793005u + 1442695040888963407u;
    const size_t count = std::min<uint64_t>(bytes - at, piece.size() * sizeof(uint64_t));
    const ssize_t written = ::write(fd, piece.data(), count);
    if (written <= 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = errno;
      ::close(fd);
      return Status::io(cat(path, ": cannot be written: ", std::strerror(error)));
    }
    at += static_cast<uint64_t>(written);
  }
  const bool flushed = ::fsync(fd) == 0;
  ::close(fd);
  if (!flushed) return Status::io(cat(path, ": cannot be flushed"));
  return file;
}

ProbeFile::ProbeFile(ProbeFile&& other) noexcept : path_(std::exchange(other.path_, {})) {}
ProbeFile::~ProbeFile() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

}  // namespace tandem

// engine/doctor/file_system_info.h: what holds a file: its file system, the space left on it, the drive below.
// The functions that read /sys and mount tables take their root or text, so that tests bring their own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem {

struct Mount {
  std::string point;
  std::string type;    // "ext4"
  std::string source;  // "/dev/nvme0n1p2", "server:/export"
};
// The last mount of device major:minor in the text of /proc/self/mountinfo.
std::optional<Mount> find_mount(std::string_view mountinfo, unsigned major, unsigned minor);

struct Drive {
  std::optional<bool> rotational;
  std::optional<double> link_gb_s;  // what its PCIe link carries at most (10^9 bytes a second)
};
Drive describe_drive(const std::string& sys_root, unsigned major, unsigned minor);

struct FileSystemInfo {
  Mount mount;
  Drive drive;
  uint64_t device = 0;  // st_dev: two files with the same one share a file system
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;  // for this user

  bool is_network() const;  // its speed is a network's
  bool is_memory() const;   // tmpfs: what it holds is in RAM already
};
Result<FileSystemInfo> describe_file_system(const std::string& path);

// Bytes that a file really has on disk, over its length; below 1 for a sparse one.
Result<double> stored_share(const std::string& path);

}  // namespace tandem

#include "engine/doctor/file_system_info.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include "base/cat.h"

namespace tandem {
namespace {

// Mount tables write a space as \040.
std::string unescaped(const std::string& field) {
  std::string text;
  for (size_t i = 0; i < field.size(); ++i) {
    if (field[i] != '\\' || i + 3 >= field.size()) {
      text.push_back(field[i]);
      continue;
    }
    text.push_back(static_cast<char>((field[i + 1] - '0') * 64 + (field[i + 2] - '0') * 8 + (field[i + 3] - '0')));
    i += 3;
  }
  return text;
}

std::optional<double> read_value(const std::string& path) {
  std::ifstream file(path);
  double value = 0;
  if (!(file >> value)) return std::nullopt;
  return value;
}

// A drive's PCIe link, for the drive or for one of its partitions ("8.0 GT/s PCIe", "4").
std::optional<double> link_of(const std::string& block) {
  for (const char* up : {"/device/device", "/../device/device"}) {
    const std::optional<double> gt_s = read_value(cat(block, up, "/current_link_speed"));
    const std::optional<double> lanes = read_value(cat(block, up, "/current_link_width"));
    if (!gt_s || !lanes || *gt_s <= 0 || *lanes <= 0) continue;
    const double coding = *gt_s < 8 ? 8.0 / 10.0 : 128.0 / 130.0;  // PCIe 1 and 2; 3 and later
    return *gt_s * *lanes * coding / 8;
  }
  return std::nullopt;
}

template <class... Names>
bool is_one_of(const std::string& type, Names... names) {
  return ((type == names) || ...);
}

}  // namespace

std::optional<Mount> find_mount(std::string_view mountinfo, unsigned major, unsigned minor) {
  const std::string wanted = cat(major, ":", minor);
  std::optional<Mount> found;
  std::istringstream lines{std::string(mountinfo)};
  std::string line;
  while (std::getline(lines, line)) {
    // 36 35 98:0 /root /mount options optional… - type source super-options
    std::istringstream words(line);
    const std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 6 || fields[2] != wanted || fields.end() - dash < 3) continue;
    found = Mount{unescaped(fields[4]), dash[1], unescaped(dash[2])};
  }
  return found;
}

Drive describe_drive(const std::string& sys_root, unsigned major, unsigned minor) {
  const std::string block = cat(sys_root, "/dev/block/", major, ":", minor);
  Drive drive;
  std::optional<double> rotational = read_value(cat(block, "/queue/rotational"));
  if (!rotational) rotational = read_value(cat(block, "/../queue/rotational"));  // of a partition: its drive's
  if (rotational) drive.rotational = *rotational != 0;
  drive.link_gb_s = link_of(block);
  return drive;
}

bool FileSystemInfo::is_network() const {
  return is_one_of(mount.type, "nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "glusterfs", "virtiofs", "afs",
                   "beegfs", "gpfs") ||
         mount.type.starts_with("fuse.");
}
bool FileSystemInfo::is_memory() const { return is_one_of(mount.type, "tmpfs", "ramfs"); }

Result<FileSystemInfo> describe_file_system(const std::string& path) {
  struct stat file = {};
  struct statvfs space = {};
  if (::stat(path.c_str(), &file) != 0 || ::statvfs(path.c_str(), &space) != 0) {
    return Status::io(cat(path, ": ", std::strerror(errno)));
  }
  FileSystemInfo info;
  info.device = file.st_dev;
  info.total_bytes = uint64_t{space.f_blocks} * space.f_frsize;
  info.free_bytes = uint64_t{space.f_bavail} * space.f_frsize;
  std::ifstream table("/proc/self/mountinfo");
  const std::string mountinfo{std::istreambuf_iterator<char>(table), {}};
  unsigned device_major = major(file.st_dev), device_minor = minor(file.st_dev);
  if (const auto mount = find_mount(mountinfo, device_major, device_minor)) info.mount = *mount;
  // A file system of several drives (btrfs) has a number of its own; its mount names one of them.
  struct stat source = {};
  const bool names_drive = info.mount.source.starts_with("/dev/") && ::stat(info.mount.source.c_str(), &source) == 0;
  if (device_major == 0 && names_drive && S_ISBLK(source.st_mode)) {
    device_major = major(source.st_rdev);
    device_minor = minor(source.st_rdev);
  }
  info.drive = describe_drive("/sys", device_major, device_minor);
  return info;
}

Result<double> stored_share(const std::string& path) {
  struct stat file = {};
  if (::stat(path.c_str(), &file) != 0) return Status::io(cat(path, ": ", std::strerror(errno)));
  if (file.st_size == 0) return 1.0;
  return std::min(1.0, 512.0 * static_cast<double>(file.st_blocks) / static_cast<double>(file.st_size));
}

}  // namespace tandem

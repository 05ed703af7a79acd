#include "engine/memory_info.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "base/cat.h"

namespace tandem {
namespace {

// A version 1 group without a limit states a number near 2^63.
constexpr int64_t kNoLimit = int64_t{1} << 60;

// The file's first number; none: no such file, or "max".
std::optional<int64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (!(file >> value) || value >= kNoLimit) return std::nullopt;
  return value;
}

int64_t read_stat(const std::string& path, const std::string& wanted) {
  std::ifstream file(path);
  std::string key;
  int64_t value = 0;
  while (file >> key >> value) {
    if (key == wanted) return value;
  }
  return 0;
}

struct GroupFiles {
  const char* limit;
  const char* soft_limit;  // the kernel slows down who is above it
  const char* usage;
  const char* droppable;
};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "", "memory.usage_in_bytes", "total_inactive_file"};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.high", "memory.current", "inactive_file"};

std::optional<int64_t> smaller(std::optional<int64_t> a, std::optional<int64_t> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

std::optional<int64_t> group_room(const std::string& folder, const GroupFiles& files) {
  std::optional<int64_t> limit = read_number(cat(folder, "/", files.limit));
  if (*files.soft_limit != '\0') limit = smaller(limit, read_number(cat(folder, "/", files.soft_limit)));
  const std::optional<int64_t> usage = read_number(cat(folder, "/", files.usage));
  if (!limit || !usage) return std::nullopt;
  const int64_t held = *usage - read_stat(cat(folder, "/memory.stat"), files.droppable);
  return std::max<int64_t>(*limit - std::max<int64_t>(held, 0), 0);
}

}  // namespace

std::optional<int64_t> cgroup_room_bytes(const std::string& root, const std::string& membership) {
  std::optional<int64_t> room;
  std::istringstream lines(membership);
  std::string line;
  while (std::getline(lines, line)) {
    // hierarchy:controllers:path; version 2 is hierarchy 0 without controllers.
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = cat(",", line.substr(first + 1, second - first - 1), ",");
    const bool is_version_2 = controllers == ",,";
    if (!is_version_2 && controllers.find(",memory,") == std::string::npos) continue;
    const std::string base = cat(root, is_version_2 ? "" : "/memory");
    std::string path = line.substr(second + 1);
    while (true) {
      room = smaller(room, group_room(cat(base, path), is_version_2 ? kVersion2 : kVersion1));
      const size_t slash = path.rfind('/');
      if (slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  return room;
}

int64_t available_memory_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  int64_t kib = 0, available = 0;
  while (available == 0 && meminfo >> key >> kib >> unit) {
    if (key == "MemAvailable:") available = kib * 1024;
  }
  std::ifstream groups("/proc/self/cgroup");
  const std::string membership((std::istreambuf_iterator<char>(groups)), std::istreambuf_iterator<char>());
  const std::optional<int64_t> room = cgroup_room_bytes("/sys/fs/cgroup", membership);
  if (!room) return available;
  return available == 0 ? *room : std::min(available, *room);
}

int64_t resident_bytes() {
  // Asked at every step of a streamed model: no stream of the library, which allocates.
  const int fd = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[128];
  const ssize_t length = ::read(fd, text, sizeof(text) - 1);
  ::close(fd);
  if (length <= 0) return 0;
  text[length] = '\0';
  char* end = nullptr;
  (void)std::strtoll(text, &end, 10);  // address space
  return std::strtoll(end, nullptr, 10) * sysconf(_SC_PAGESIZE);
}

int64_t peak_resident_bytes() {
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return usage.ru_maxrss * 1024;
}

}  // namespace tandem

#include "engine/memory_info.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "base/cat.h"
#include "base/cgroup.h"

namespace tandem {
namespace {

int64_t meminfo_bytes(std::string_view wanted) {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  int64_t kib = 0;
  while (meminfo >> key >> kib >> unit) {
    if (key == wanted) return kib * 1024;
  }
  return 0;
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

const GroupFiles& files_of(CgroupVersion version) { return version == CgroupVersion::kTwo ? kVersion2 : kVersion1; }

std::optional<int64_t> group_limit(const std::string& folder, const GroupFiles& files) {
  const std::optional<int64_t> limit = read_cgroup_number(cat(folder, "/", files.limit));
  if (*files.soft_limit == '\0') return limit;
  return smaller(limit, read_cgroup_number(cat(folder, "/", files.soft_limit)));
}

std::optional<int64_t> group_room(const std::string& folder, const GroupFiles& files) {
  const std::optional<int64_t> limit = group_limit(folder, files);
  const std::optional<int64_t> usage = read_cgroup_number(cat(folder, "/", files.usage));
  if (!limit || !usage) return std::nullopt;
  const int64_t held = *usage - read_stat(cat(folder, "/memory.stat"), files.droppable);
  return std::max<int64_t>(*limit - std::max<int64_t>(held, 0), 0);
}

}  // namespace

std::optional<int64_t> cgroup_room_bytes(const std::string& root, const std::string& membership) {
  std::optional<int64_t> room;
  for_each_cgroup(root, membership, "memory", [&](const std::string& folder, CgroupVersion version) {
    room = smaller(room, group_room(folder, files_of(version)));
  });
  return room;
}

std::optional<MemoryLimit> cgroup_memory_limit(const std::string& root, const std::string& membership) {
  std::optional<MemoryLimit> tightest;
  for_each_cgroup(root, membership, "memory", [&](const std::string& folder, CgroupVersion version) {
    const std::optional<int64_t> limit = group_limit(folder, files_of(version));
    if (limit && (!tightest || *limit < tightest->bytes)) tightest = MemoryLimit{*limit, folder};
  });
  return tightest;
}

int64_t total_memory_bytes() { return meminfo_bytes("MemTotal:"); }

int64_t available_memory_bytes() {
  const int64_t available = meminfo_bytes("MemAvailable:");
  const std::optional<int64_t> room = cgroup_room_bytes(std::string(kCgroupRoot), read_cgroup_membership());
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

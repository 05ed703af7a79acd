// engine/memory_info.h: what the operating system says about memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tandem {

int64_t total_memory_bytes();  // of the machine; 0 when unknown
// What this process may still take: MemAvailable, and not more than any control group above it leaves; 0 when unknown.
int64_t available_memory_bytes();
int64_t resident_bytes();       // of this process; 0 when unknown
int64_t peak_resident_bytes();  // of this process

// The least room that the control groups of `membership` (the text of /proc/self/cgroup) leave under `root`
// (/sys/fs/cgroup): limit less usage, file pages that can be dropped not counted as used, in the group and in each one
// above it. Versions 1 and 2. None: no limit is set.
std::optional<int64_t> cgroup_room_bytes(const std::string& root, const std::string& membership);

struct MemoryLimit {
  int64_t bytes = 0;
  std::string folder;  // of the group that sets it
};
// The tightest limit itself, whatever is in use. None: no limit is set.
std::optional<MemoryLimit> cgroup_memory_limit(const std::string& root, const std::string& membership);

}  // namespace tandem

#include "base/cpu_topology.h"

#include <dirent.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/cat.h"

namespace tandem {
namespace {

constexpr int kMaxCpus = 1 << 16;

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "2048K" or "32M" in bytes; 0 when it is neither.
int64_t cache_bytes(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0 || value > int64_t{1} << 40) return 0;
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  if (unit == "K") return value << 10;
  if (unit == "M") return value << 20;
  return unit.empty() ? value : 0;
}

// The allowed members of a list in a file, as one more group unless it is there already.
void add_group(const std::string& path, const CpuList& allowed, std::vector<CpuList>& groups) {
  const std::optional<CpuList> listed = parse_cpu_list(read_line(path));
  if (!listed) return;
  CpuList members;
  std::ranges::set_intersection(*listed, allowed, std::back_inserter(members));
  if (members.empty() || std::ranges::find(groups, members) != groups.end()) return;
  groups.push_back(std::move(members));
}

std::vector<std::string> entries_of(const std::string& folder, std::string_view prefix) {
  std::vector<std::string> names;
  DIR* const dir = ::opendir(folder.c_str());
  if (dir == nullptr) return names;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string_view name = entry->d_name;
    const bool has_number = name.size() > prefix.size() && name[prefix.size()] >= '0' && name[prefix.size()] <= '9';
    if (name.starts_with(prefix) && has_number) names.emplace_back(name);
  }
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

void add_caches(const std::string& cpu_folder, CpuTopology& topology) {
  const std::string caches = cat(cpu_folder, "/cache");
  for (const std::string& name : entries_of(caches, "index")) {
    const std::string cache = cat(caches, "/", name);
    const std::string level = read_line(cat(cache, "/level"));
    if (read_line(cat(cache, "/type")) == "Instruction") continue;
    if (level == "2") {
      add_group(cat(cache, "/shared_cpu_list"), topology.allowed, topology.l2);
      topology.l2_bytes = cache_bytes(read_line(cat(cache, "/size")));
    } else if (level == "3") {
      add_group(cat(cache, "/shared_cpu_list"), topology.allowed, topology.l3);
      topology.l3_bytes = cache_bytes(read_line(cat(cache, "/size")));
    }
  }
}

}  // namespace

std::optional<CpuList> parse_cpu_list(std::string_view text) {
  CpuList cpus;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    int first = 0;
    auto parsed = std::from_chars(at, end, first);
    if (parsed.ec != std::errc() || first < 0) return std::nullopt;
    int last = first;
    if (parsed.ptr < end && *parsed.ptr == '-') {
      parsed = std::from_chars(parsed.ptr + 1, end, last);
      if (parsed.ec != std::errc()) return std::nullopt;
    }
    if (last < first || last >= kMaxCpus) return std::nullopt;
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    at = parsed.ptr;
    if (at == end) break;
    if (*at != ',' || at + 1 == end) return std::nullopt;
    ++at;
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::string cpu_list_text(const CpuList& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    text += cat(text.empty() ? "" : ",", cpus[i]);
    if (last > i) text += cat("-", cpus[last]);
    i = last + 1;
  }
  return text;
}

CpuList allowed_cpus() {
  CpuList cpus;
  // The kernel refuses a mask smaller than its own.
  for (int size = CPU_SETSIZE; size <= kMaxCpus; size *= 2) {
    cpu_set_t* const mask = CPU_ALLOC(static_cast<size_t>(size));
    if (mask == nullptr) return cpus;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(size));
    const bool known = ::sched_getaffinity(0, bytes, mask) == 0;
    for (int cpu = 0; known && cpu < size; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, mask)) cpus.push_back(cpu);
    }
    CPU_FREE(mask);
    if (known) break;
  }
  return cpus;
}

CpuTopology read_cpu_topology(const std::string& sys_root, CpuList allowed) {
  CpuTopology topology;
  topology.allowed = std::move(allowed);
  for (const int cpu : topology.allowed) {
    const std::string folder = cat(sys_root, "/devices/system/cpu/cpu", cpu);
    add_group(cat(folder, "/topology/thread_siblings_list"), topology.allowed, topology.cores);
    add_caches(folder, topology);
  }
  const std::string nodes = cat(sys_root, "/devices/system/node");
  for (const std::string& node : entries_of(nodes, "node")) {
    add_group(cat(nodes, "/", node, "/cpulist"), topology.allowed, topology.numa_nodes);
  }
  std::sort(topology.numa_nodes.begin(), topology.numa_nodes.end());  // "node10" was read before "node2"
  return topology;
}

std::string transparent_huge_pages(const std::string& sys_root) {
  const std::string line = read_line(cat(sys_root, "/kernel/mm/transparent_hugepage/enabled"));
  const size_t open = line.find('[');
  const size_t close = line.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return "";
  return line.substr(open + 1, close - open - 1);
}

bool CpuModel::has(std::string_view flag) const { return std::binary_search(flags.begin(), flags.end(), flag); }

CpuModel parse_cpuinfo(std::string_view text) {
  CpuModel model;
  std::istringstream lines{std::string(text)};
  std::string line;
  while (std::getline(lines, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string value = colon + 2 <= line.size() ? line.substr(colon + 2) : "";
    if (model.name.empty() && line.starts_with("model name")) model.name = value;
    if (model.flags.empty() && (line.starts_with("flags") || line.starts_with("Features"))) {
      std::istringstream words(value);
      model.flags.assign(std::istream_iterator<std::string>(words), {});
    }
  }
  std::sort(model.flags.begin(), model.flags.end());
  return model;
}

}  // namespace tandem

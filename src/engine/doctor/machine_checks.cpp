#include "engine/doctor/machine_checks.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <span>

#include "base/cat.h"
#include "engine/doctor/size_words.h"

namespace tandem {
namespace {

constexpr int64_t kBufferBytes = int64_t{1} << 30;  // of the read measurement: far larger than any cache

// Instructions that say how fast a CPU may become, beyond what the kernels need.
constexpr std::string_view kNotedInstructions[] = {"avx_vnni",    "avx512_vnni", "avx512_vbmi",
                                                   "avx512_fp16", "amx_int8",    "amx_fp16"};

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += cat(text.empty() ? "" : ", ", word);
  return text;
}

DoctorCheck cpu_check(std::string_view name) { return {.area = "cpu", .name = std::string(name)}; }

void check_kernels(const MachineFacts& facts, KernelBackend chosen, KernelBackend best, TellCheck tell) {
  DoctorCheck check = cpu_check("kernels");
  check.message = cat(kernel_backend_name(chosen), " kernels");
  if (!facts.cpu.name.empty()) check.message += cat(" on ", facts.cpu.name);
  check.values = {{"backend", std::string(kernel_backend_name(chosen))},
                  {"best_backend", std::string(kernel_backend_name(best))},
                  {"model", facts.cpu.name}};
  std::vector<std::string> noted;
  for (const std::string_view name : kNotedInstructions) {
    if (facts.cpu.has(name)) noted.emplace_back(name);
  }
  check.values.emplace_back("further_instructions", joined(noted));
  if (chosen < best) {
    check.verdict = Verdict::kWarning;
    check.message += cat(", by choice: this CPU runs ", kernel_backend_name(best), ", which is faster");
  } else if (best < KernelBackend::kAmx) {
    const KernelBackend next = best < KernelBackend::kAvx2     ? KernelBackend::kAvx2
                               : best < KernelBackend::kAvx512 ? KernelBackend::kAvx512
                                                               : KernelBackend::kAmx;
    const std::vector<std::string> missing = missing_instructions(facts.cpu, next);
    // AVX2 is the usual machine; without it everything is several times slower.
    check.verdict = best < KernelBackend::kAvx2 ? Verdict::kWarning : Verdict::kOk;
    check.message += cat("; not ", kernel_backend_name(next), ": this CPU, or the virtual machine, lacks ",
                         missing.empty() ? "the operating system's support for it" : joined(missing));
  }
  tell(std::move(check));
}

void check_threads(const MachineFacts& facts, int num_threads, TellCheck tell) {
  DoctorCheck check = cpu_check("threads");
  const auto allowed = static_cast<int64_t>(facts.topology.allowed.size());
  check.message = cat(num_threads, num_threads == 1 ? " thread" : " threads", "; this process may run on ", allowed,
                      allowed == 1 ? " processor" : " processors", " (", cpu_list_text(facts.topology.allowed), ")");
  check.values = {{"threads", int64_t{num_threads}}, {"allowed_processors", allowed}};
  if (facts.quota) {
    check.values.emplace_back("quota_processors", facts.quota->cpus);
    check.message += cat(" for ", rounded(facts.quota->cpus), " processors' time (", facts.quota->folder, ")");
  }
  const int64_t usable =
      facts.quota ? std::min(allowed, std::max<int64_t>(1, std::llround(std::floor(facts.quota->cpus)))) : allowed;
  if (allowed > 0 && num_threads > usable) {
    check.verdict = Verdict::kWarning;
    check.message += cat(": more threads than that wait for each other, use --threads ", usable);
  } else if (num_threads < usable) {
    check.message += cat("; ", usable, " could be used");
  }
  tell(std::move(check));
}

void check_smt(const MachineFacts& facts, int num_threads, TellCheck tell) {
  const auto cores = static_cast<int64_t>(facts.topology.cores.size());
  const auto allowed = static_cast<int64_t>(facts.topology.allowed.size());
  DoctorCheck check = cpu_check("smt");
  check.values = {{"cores", cores}};
  if (cores == 0) {
    check.verdict = Verdict::kSkipped;
    check.message = "the system does not say which processors share a core";
  } else if (cores == allowed) {
    check.message = cat(cores, cores == 1 ? " core" : " cores", ", one processor each");
  } else {
    check.message = cat(cores, " cores with ", allowed, " processors");
    if (num_threads > cores) {
      check.verdict = Verdict::kWarning;
      check.message += cat(": two threads on a core share its arithmetic and its bandwidth; --threads ", cores,
                           " is usually as fast or faster");
    }
  }
  tell(std::move(check));
}

// How many of the groups hold a thread; all when threads are not bound.
size_t groups_in_use(const std::vector<CpuList>& groups, const ThreadPlacement& threads) {
  if (threads.cpus.empty()) return std::min(groups.size(), static_cast<size_t>(threads.num_threads));
  const auto count = std::min(threads.cpus.size(), static_cast<size_t>(threads.num_threads));
  const std::span bound = std::span(threads.cpus).first(count);
  return static_cast<size_t>(std::ranges::count_if(groups, [&](const CpuList& group) {
    return std::ranges::any_of(bound, [&](int cpu) { return std::ranges::binary_search(group, cpu); });
  }));
}

// Advice when threads straddle groups that share something (field report 68).
void check_groups(std::string_view name, std::string_view what, const std::vector<CpuList>& groups, int64_t bytes,
                  const ThreadPlacement& threads, TellCheck tell) {
  DoctorCheck check = cpu_check(name);
  check.values = {{"groups", static_cast<int64_t>(groups.size())}};
  if (groups.empty()) {
    check.verdict = Verdict::kSkipped;
    check.message = cat("the system does not say which processors share ", what);
    return tell(std::move(check));
  }
  const std::string size = bytes > 0 ? cat(" of ", bytes >> 20, " MiB") : "";
  if (bytes > 0) check.values.emplace_back("bytes", bytes);
  if (groups.size() == 1) {
    check.message = cat("all processors share ", what, size);
    return tell(std::move(check));
  }
  for (const CpuList& group : groups) check.details.push_back(cat(what, size, ": processors ", cpu_list_text(group)));
  const auto used = static_cast<int64_t>(groups_in_use(groups, threads));
  check.values.emplace_back("groups_in_use", used);
  check.message = cat(groups.size(), " groups of processors, each with ", what, size, " of its own; ",
                      threads.num_threads, threads.num_threads == 1 ? " thread" : " threads",
                      threads.cpus.empty() ? " that are not bound use " : " use ", used);
  if (used > 1) {
    const CpuList& largest = *std::ranges::max_element(groups, {}, &CpuList::size);
    check.verdict = Verdict::kWarning;
    check.message += cat(": straddling has cost others 16-25 %; compare with --cpus ", cpu_list_text(largest));
  }
  tell(std::move(check));
}

void check_huge_pages(const MachineFacts& facts, TellCheck tell) {
  DoctorCheck check = cpu_check("huge_pages");
  check.values = {{"transparent_huge_pages", facts.huge_pages}};
  if (facts.huge_pages == "always" || facts.huge_pages == "madvise") {
    check.message = cat("transparent huge pages: ", facts.huge_pages);
  } else {
    check.verdict = Verdict::kWarning;
    check.message = cat("transparent huge pages: ", facts.huge_pages.empty() ? "not in this kernel" : facts.huge_pages,
                        ": reading weights loses bandwidth to address translation; as root: echo madvise > "
                        "/sys/kernel/mm/transparent_hugepage/enabled");
  }
  tell(std::move(check));
}

}  // namespace

MachineFacts read_machine_facts() {
  MachineFacts facts;
  std::ifstream cpuinfo("/proc/cpuinfo");
  facts.cpu = parse_cpuinfo(std::string{std::istreambuf_iterator<char>(cpuinfo), {}});
  facts.topology = read_cpu_topology("/sys", allowed_cpus());
  const std::string membership = read_cgroup_membership();
  const std::string root(kCgroupRoot);
  facts.quota = cgroup_cpu_quota(root, membership);
  facts.huge_pages = transparent_huge_pages("/sys");
  facts.total_memory_bytes = total_memory_bytes();
  facts.available_memory_bytes = available_memory_bytes();
  facts.memory_limit = cgroup_memory_limit(root, membership);
  return facts;
}

std::vector<std::string> missing_instructions(const CpuModel& cpu, KernelBackend backend) {
  std::vector<std::string> needed;
  if (backend >= KernelBackend::kAvx2) needed = {"avx2", "fma", "f16c", "bmi2"};
  if (backend >= KernelBackend::kAvx512) {
    needed.insert(needed.end(), {"avx512f", "avx512bw", "avx512dq", "avx512vl"});
  }
  if (backend >= KernelBackend::kAmx) needed.insert(needed.end(), {"amx_tile", "amx_bf16", "avx512_bf16"});
  std::erase_if(needed, [&](const std::string& name) { return cpu.has(name); });
  return needed;
}

void check_cpu(const MachineFacts& facts, KernelBackend chosen, KernelBackend best, const ThreadPlacement& threads,
               TellCheck tell) {
  check_kernels(facts, chosen, best, tell);
  check_threads(facts, threads.num_threads, tell);
  check_smt(facts, threads.num_threads, tell);
  check_groups("caches", "a last-level cache", facts.topology.l3.empty() ? facts.topology.l2 : facts.topology.l3,
               facts.topology.l3.empty() ? facts.topology.l2_bytes : facts.topology.l3_bytes, threads, tell);
  check_groups("numa", "a memory node", facts.topology.numa_nodes, 0, threads, tell);
  check_huge_pages(facts, tell);
}

void check_memory_size(const MachineFacts& facts, TellCheck tell) {
  DoctorCheck check{.area = "memory", .name = "size"};
  check.values = {{"total_bytes", facts.total_memory_bytes}, {"available_bytes", facts.available_memory_bytes}};
  check.message = cat(bytes_text(facts.available_memory_bytes), " can be used, of the machine's ",
                      bytes_text(facts.total_memory_bytes));
  if (facts.memory_limit && facts.memory_limit->bytes < facts.total_memory_bytes) {
    check.values.emplace_back("cgroup_limit_bytes", facts.memory_limit->bytes);
    check.message += cat("; the control group ", facts.memory_limit->folder, " ends at ",
                         bytes_text(facts.memory_limit->bytes), ", which is what counts");
  }
  tell(std::move(check));
}

MachineCeilings check_memory_speed(const MachineFacts& facts, const KernelTable& kernels,
                                   const ThreadPlacement& threads, TellCheck tell) {
  const int num_threads = threads.num_threads;
  DoctorCheck check{.area = "memory", .name = "ceilings"};
  // A quarter of what there is at most: a measurement must not be what makes the machine swap.
  const int64_t available = facts.available_memory_bytes > 0 ? facts.available_memory_bytes : kBufferBytes;
  const auto buffer = static_cast<size_t>(std::clamp(available / 4, int64_t{64} << 20, kBufferBytes));
  MachineCeilings one, all;
  for (MachineCeilings* ceilings : {&one, &all}) {
    const bool alone = ceilings == &one;
    ThreadPool pool(alone ? 1 : num_threads, alone ? std::span<const int>() : std::span<const int>(threads.cpus));
    Arena arena;
    *ceilings = measure_ceilings(ExecContext{pool, arena, kernels}, buffer);
    if (num_threads == 1) all = one;
    if (num_threads == 1) break;
  }
  check.values = {{"read_gb_s_one_thread", one.read_gb_s},
                  {"read_gb_s", all.read_gb_s},
                  {"f32_gflop_s_one_thread", one.f32_gflop_s},
                  {"f32_gflop_s", all.f32_gflop_s},
                  {"threads", int64_t{num_threads}}};
  check.message = cat("reading ", rounded(all.read_gb_s), " GB/s and ", rounded(all.f32_gflop_s),
                      " GFLOP/s in f32 with ", num_threads, num_threads == 1 ? " thread" : " threads");
  if (num_threads > 1) {
    check.message += cat(" (one: ", rounded(one.read_gb_s), " and ", rounded(one.f32_gflop_s), ")");
  }
  if (all.read_gb_s == 0) {
    check.verdict = Verdict::kWarning;
    check.message += cat("; reading could not be measured: no ", bytes_text(uint64_t{buffer}), " of memory");
  } else if (all.f32_gflop_s < one.f32_gflop_s || all.read_gb_s < 0.9 * one.read_gb_s) {
    check.verdict = Verdict::kWarning;
    check.message += "; all threads together do less than one: something else uses the processors";
  }
  tell(std::move(check));
  return all;
}

}  // namespace tandem

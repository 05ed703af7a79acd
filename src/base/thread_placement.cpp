#include "base/thread_placement.h"

#include <sched.h>

#include <algorithm>

#include "base/cat.h"

namespace tandem {
namespace {

// The group among `groups` that holds `cpu`; their number when none does.
size_t group_of(const std::vector<CpuList>& groups, int cpu) {
  size_t i = 0;
  while (i < groups.size() && std::ranges::find(groups[i], cpu) == groups[i].end()) ++i;
  return i;
}

struct Place {
  size_t sibling = 0;  // 0: the core's first processor
  size_t node = 0;
  size_t cache = 0;
  int cpu = 0;
  auto operator<=>(const Place&) const = default;
};

// Every core's first processor before any second one; one memory node, and in it one cache, after the other.
CpuList filling_order(const CpuTopology& topology) {
  std::vector<Place> places;
  for (const int cpu : topology.allowed) {
    const size_t core = group_of(topology.cores, cpu);
    size_t sibling = 0;
    if (core < topology.cores.size()) {
      const CpuList& members = topology.cores[core];
      sibling = static_cast<size_t>(std::ranges::find(members, cpu) - members.begin());
    }
    places.push_back({sibling, group_of(topology.numa_nodes, cpu), group_of(topology.l3, cpu), cpu});
  }
  std::sort(places.begin(), places.end());
  CpuList order;
  for (const Place& place : places) order.push_back(place.cpu);
  return order;
}

Result<ThreadPlacement> on_these(const CpuTopology& topology, const ThreadWish& wish) {
  const CpuList& cpus = *wish.cpus;
  if (cpus.empty()) return Status::invalid("processors: expected at least one, found none");
  for (const int cpu : cpus) {
    if (std::ranges::find(topology.allowed, cpu) == topology.allowed.end()) {
      return Status::invalid(cat("processor ", cpu, ": expected one that this process may run on (",
                                 cpu_list_text(topology.allowed), ")"));
    }
  }
  const int num_threads = wish.num_threads.value_or(static_cast<int>(cpus.size()));
  if (num_threads > static_cast<int>(cpus.size())) {
    return Status::invalid(cat(num_threads, " threads on ", cpus.size(), " processors (", cpu_list_text(cpus),
                               "): expected a processor for each thread"));
  }
  return ThreadPlacement{num_threads, CpuList(cpus.begin(), cpus.begin() + num_threads)};
}

}  // namespace

Result<ThreadPlacement> place_threads(const CpuTopology& topology, std::optional<double> quota_cpus,
                                      const ThreadWish& wish) {
  if (wish.cpus) return on_these(topology, wish);
  const int allowed = std::max(static_cast<int>(topology.allowed.size()), 1);
  ThreadPlacement placement;
  if (wish.num_threads) {
    placement.num_threads = *wish.num_threads;
  } else {
    placement.num_threads = topology.cores.empty() ? allowed : static_cast<int>(topology.cores.size());
    if (quota_cpus) {
      const int whole = *quota_cpus < allowed ? static_cast<int>(*quota_cpus) : allowed;
      placement.num_threads = std::clamp(whole, 1, placement.num_threads);
    }
  }
  const bool has_domains = topology.l3.size() > 1 || topology.numa_nodes.size() > 1;
  if (has_domains && placement.num_threads <= allowed) {
    placement.cpus = filling_order(topology);
    placement.cpus.resize(static_cast<size_t>(placement.num_threads));
  }
  return placement;
}

bool bind_this_thread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  CPU_SET(static_cast<size_t>(cpu), &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

}  // namespace tandem

// apps/tandem/trace_replay_command.h: the half of `tandem trace` that needs no model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::app {

struct TraceReplayFlags {
  std::string file;  // empty: record instead
  std::vector<double> percents = {10, 25, 50};
  int64_t num_experts = 0;  // of a layer; 0: as many as the trace's largest id asks for
};

// Prints the hit rates of every policy at every capacity; the exit code.
int run_trace_replay(const TraceReplayFlags& flags, bool json);

}  // namespace tandem::app

// tandem trace --replay: what a cache of experts would have hit on a recorded trace, policy by policy.
#include <fmt/core.h>

#include "base/read_file.h"
#include "command.h"
#include "stream/trace_replay.h"
#include "trace_replay_command.h"

namespace tandem::app {

int run_trace_replay(const TraceReplayFlags& flags, bool json) {
  const Result<std::string> text = read_file(flags.file, "a routing trace, one JSON object a token");
  if (!text.is_ok()) return report_error(text.status());
  const Result<RecordedTrace> trace = parse_trace(text.value(), flags.file, flags.num_experts);
  if (!trace.is_ok()) return report_error(trace.status());
  const Result<ReplayReport> report = replay_trace(trace.value(), flags.percents);
  if (!report.is_ok()) return report_error(report.status());
  fmt::print("{}", json ? replay_json(report.value()) + "\n" : replay_text(report.value()));
  return kExitOk;
}

}  // namespace tandem::app

// cost/speed.h: seconds of a step on a machine: the floor, the prediction, and the resource that limits each
// (systems.md §8.3, §8.4, §8.6). Threading: pure functions.
//
//   floor      max(bytes / memory rate, FLOPs / FLOP rate, link bytes / link rate, disk bytes / disk rate)
//   predicted  the same at the ceilings times Efficiency, with what memory and arithmetic do not hide of each other and
//              the fixed cost of each step (cost/machine.h)
//   Reads of experts are taken to overlap with the rest (look-ahead); reads of a trunk that does not fit are too.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "cost/machine.h"
#include "cost/placement.h"
#include "cost/step_cost.h"

namespace tandem {

enum class Limit { kMemory, kCompute, kHostLink, kDisk };
std::string_view limit_name(Limit limit);

struct PhaseTime {
  double floor_seconds = 0;
  Limit floor_limit = Limit::kMemory;
  double seconds = 0;  // predicted
  Limit limit = Limit::kMemory;
  double disk_bytes = 0;
  double link_bytes = 0;
};

// What a machine can be asked: machine, efficiencies and where the weights lie.
struct SpeedModel {
  Machine machine;
  Efficiency efficiency;
  Placement placement;
};

struct StepKind {
  bool is_prefill = false;
  double steps = 1;   // that the cost adds up
  double tokens = 1;  // in all of them
};

// None when a rate that the cost needs is unknown.
std::optional<PhaseTime> phase_time(const ModelCost& model, const SpeedModel& speed, const StepCost& cost,
                                    const StepKind& kind);
std::optional<PhaseTime> decode_time(const ModelCost& model, const SpeedModel& speed, double depth, double sequences);
std::optional<PhaseTime> prefill_time(const ModelCost& model, const SpeedModel& speed, int64_t past, int64_t tokens,
                                      int64_t chunk);

// The batch at which a decode step at `depth` needs as long for its FLOPs as for its bytes, at the ceilings; none when
// it never does (each sequence brings more bytes than FLOPs), or rates are unknown.
std::optional<double> decode_knee(const ModelCost& model, const Machine& machine, double depth);
// The tokens of one prefill step from which FLOPs take longer than the weights' bytes.
std::optional<double> prefill_knee(const ModelCost& model, const Machine& machine);

// Memory at which reads from disk hide behind the rest of a decode step: less than everything, if the disk is fast.
std::optional<double> memory_to_hide_disk(const ModelCost& model, const SpeedModel& speed, const FixedMemory& fixed,
                                          double depth, double sequences);

// A prefix of `tokens` tokens found in a tier that is read at `rate`, against computing it again in steps of `chunk`
// that would be full without it: a token pays its own FLOPs and its share of a step's weights (systems.md §8.6).
struct PrefixHit {
  double restore_bytes = 0;
  double restore_seconds = 0;
  double recompute_seconds = 0;
};
std::optional<PrefixHit> prefix_hit(const ModelCost& model, const SpeedModel& speed, int64_t tokens, int64_t chunk,
                                    double rate);
// The shortest prefix that is worth restoring: none when none is up to `limit`.
std::optional<int64_t> prefix_break_even(const ModelCost& model, const SpeedModel& speed, int64_t limit, int64_t chunk,
                                         double rate);

}  // namespace tandem

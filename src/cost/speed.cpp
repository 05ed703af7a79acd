#include "cost/speed.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace tandem {
namespace {

constexpr double kMostSequences = 1e7;

// Of the four limits in their order.
std::pair<double, Limit> largest(const std::array<double, 4>& seconds) {
  const auto at = static_cast<size_t>(std::max_element(seconds.begin(), seconds.end()) - seconds.begin());
  return {seconds[at], static_cast<Limit>(at)};
}

}  // namespace

std::string_view limit_name(Limit limit) {
  switch (limit) {
    case Limit::kMemory: return "memory bandwidth";
    case Limit::kCompute: return "FLOPs";
    case Limit::kHostLink: return "host link";
    case Limit::kDisk: return "disk";
  }
  return "?";
}

std::optional<PhaseTime> phase_time(const ModelCost& model, const SpeedModel& speed, const StepCost& cost,
                                    const StepKind& kind) {
  const Machine& machine = speed.machine;
  const Placement& place = speed.placement;
  PhaseTime time;
  time.link_bytes = place.share_host() * cost.expert_bytes;
  time.disk_bytes = place.share_disk() * cost.expert_bytes + kind.steps * place.trunk_missing;
  if (!machine.memory_rate || !machine.flops_rate) return std::nullopt;
  if (time.disk_bytes > 0 && !machine.disk_rate) return std::nullopt;
  if (time.link_bytes > 0 && !machine.host_rate) return std::nullopt;
  const Efficiency& reach = speed.efficiency;
  const double link = time.link_bytes > 0 ? time.link_bytes / *machine.host_rate : 0;
  const double disk = time.disk_bytes > 0 ? time.disk_bytes / *machine.disk_rate : 0;
  const double memory = cost.bytes() / *machine.memory_rate;
  const double compute = cost.flops() / *machine.flops_rate;
  std::tie(time.floor_seconds, time.floor_limit) = largest({memory, compute, link, disk});

  const double matrix_share = kind.is_prefill ? reach.prefill_flops : reach.decode_flops;
  const double reached_memory = memory / reach.memory;
  const double reached_compute =
      (cost.matrix_flops() / matrix_share + cost.attention_flops() / reach.attention_flops) / *machine.flops_rate;
  const double behind = (1.0 - reach.overlap) * std::min(reached_memory, reached_compute);
  // What is not hidden counts to the larger of the two.
  std::tie(time.seconds, time.limit) =
      largest({reached_memory + (reached_memory >= reached_compute ? behind : 0.0),
               reached_compute + (reached_compute > reached_memory ? behind : 0.0), link, disk / reach.disk});
  time.seconds += static_cast<double>(model.config.num_hidden_layers) *
                  (kind.steps * reach.layer_seconds + kind.tokens * reach.row_seconds);
  return time;
}

std::optional<PhaseTime> decode_time(const ModelCost& model, const SpeedModel& speed, double depth, double sequences) {
  return phase_time(model, speed, decode_cost(model, depth, sequences),
                    {.is_prefill = false, .steps = 1, .tokens = sequences});
}

std::optional<PhaseTime> prefill_time(const ModelCost& model, const SpeedModel& speed, int64_t past, int64_t tokens,
                                      int64_t chunk) {
  const auto steps = static_cast<double>((tokens + chunk - 1) / chunk);
  return phase_time(model, speed, prefill_cost(model, past, tokens, chunk),
                    {.is_prefill = true, .steps = steps, .tokens = static_cast<double>(tokens)});
}

std::optional<double> decode_knee(const ModelCost& model, const Machine& machine, double depth) {
  if (!machine.memory_rate || !machine.flops_rate) return std::nullopt;
  const auto compute_bound = [&](double sequences) {
    const StepCost cost = decode_cost(model, depth, sequences);
    return cost.flops() / *machine.flops_rate >= cost.bytes() / *machine.memory_rate;
  };
  if (!compute_bound(kMostSequences)) return std::nullopt;
  double low = 0, high = kMostSequences;
  while (high - low > 1e-6 * high) {
    const double middle = (low + high) / 2;
    (compute_bound(middle) ? high : low) = middle;
  }
  return std::max(high, 1.0);
}

std::optional<double> prefill_knee(const ModelCost& model, const Machine& machine) {
  if (!machine.memory_rate || !machine.flops_rate) return std::nullopt;
  int64_t low = 0, high = 1;
  const auto compute_bound = [&](int64_t rows) {
    const StepCost cost = prefill_cost(model, 0, rows, rows);
    return cost.flops() / *machine.flops_rate >= cost.bytes() / *machine.memory_rate;
  };
  while (!compute_bound(high)) {
    low = high;
    high *= 2;
    if (high > int64_t{1} << 30) return std::nullopt;
  }
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (compute_bound(middle) ? high : low) = middle;
  }
  return static_cast<double>(high);
}

std::optional<double> memory_to_hide_disk(const ModelCost& model, const SpeedModel& speed, const FixedMemory& fixed,
                                          double depth, double sequences) {
  if (!speed.machine.disk_rate || model.weights.num_experts() == 0) return std::nullopt;
  SpeedModel resident = speed;
  resident.placement = Placement{};
  const std::optional<PhaseTime> rest = decode_time(model, resident, depth, sequences);
  if (!rest) return std::nullopt;
  const double expert_bytes = decode_cost(model, depth, sequences).expert_bytes;
  const double hidden = rest->seconds * *speed.machine.disk_rate * speed.efficiency.disk;
  const double share = std::min(hidden / expert_bytes, 1.0);
  return fixed.total() + (1.0 - share) * static_cast<double>(model.weights.routed_bytes());
}

std::optional<PrefixHit> prefix_hit(const ModelCost& model, const SpeedModel& speed, int64_t tokens, int64_t chunk,
                                    double rate) {
  // A prefix ends before the prompt does: no row of it has logits.
  StepCost cost = prefill_cost(model, 0, tokens, chunk, PromptLogits::kNone);
  const double steps = static_cast<double>(tokens) / static_cast<double>(chunk);
  const StepCost full = prefill_cost(model, 0, chunk, chunk, PromptLogits::kNone);
  cost.trunk_bytes = steps * full.trunk_bytes;
  cost.expert_bytes = steps * full.expert_bytes;
  cost.state_bytes = steps * full.state_bytes;
  const std::optional<PhaseTime> again =
      phase_time(model, speed, cost, {.is_prefill = true, .steps = steps, .tokens = static_cast<double>(tokens)});
  if (!again) return std::nullopt;
  PrefixHit hit;
  hit.restore_bytes = state_bytes_per_sequence(model) + static_cast<double>(tokens) * cache_bytes_per_token(model);
  hit.restore_seconds = hit.restore_bytes / rate;
  hit.recompute_seconds = again->seconds;
  return hit;
}

std::optional<int64_t> prefix_break_even(const ModelCost& model, const SpeedModel& speed, int64_t limit, int64_t chunk,
                                         double rate) {
  const auto pays = [&](int64_t tokens) {
    const std::optional<PrefixHit> hit = prefix_hit(model, speed, tokens, chunk, rate);
    return hit && hit->restore_seconds <= hit->recompute_seconds;
  };
  if (!pays(limit)) return std::nullopt;
  int64_t low = 0, high = limit;  // recomputation grows faster than the restore: one crossing
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (pays(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace tandem

#include "stream_output.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

namespace tandem::app {
namespace {

double share(uint64_t part, uint64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

double read_gb_s(const ExpertStoreStats& stats) {
  return stats.busy_seconds > 0 ? static_cast<double>(stats.bytes_read) / stats.busy_seconds / 1e9 : 0.0;
}

}  // namespace

nlohmann::ordered_json stream_json(const ExpertStoreStats& stats, int64_t num_slots, int64_t num_experts) {
  return {{"slots", num_slots},
          {"experts", num_experts},
          {"needed", stats.needed},
          {"hits", stats.hits},
          {"ahead", stats.ahead},
          {"misses", stats.misses},
          {"hit_rate", share(stats.hits, stats.needed)},
          {"bytes_read", stats.bytes_read},
          {"bytes_unused", stats.bytes_unused},
          {"busy_s", stats.busy_seconds},
          {"busy_read_gb_s", read_gb_s(stats)},
          {"stall_s", stats.stall_seconds},
          {"prediction_precision", share(stats.predicted_right, stats.predicted)},
          {"prediction_recall", share(stats.predicted_right, stats.predicted_needed)}};
}

std::string stream_line(const ExpertStoreStats& stats) {
  return fmt::format(
      "experts: {} needed, {:.1f}% in memory, {:.1f}% under way, {:.1f}% missed; read {:.1f} MB at {:.2f} GB/s, "
      "{:.1f} MB of it for nothing; stalled {:.2f} s; predictions {:.1f}% right, {:.1f}% of what was needed",
      stats.needed, 100 * share(stats.hits, stats.needed), 100 * share(stats.ahead, stats.needed),
      100 * share(stats.misses, stats.needed), static_cast<double>(stats.bytes_read) / 1e6, read_gb_s(stats),
      static_cast<double>(stats.bytes_unused) / 1e6, stats.stall_seconds,
      100 * share(stats.predicted_right, stats.predicted), 100 * share(stats.predicted_right, stats.predicted_needed));
}

}  // namespace tandem::app

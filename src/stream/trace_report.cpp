// The replay's report as a table and as JSON.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "stream/trace_replay.h"

namespace tandem {
namespace {

double share(int64_t hits, const ReplayReport& report) {
  return 100.0 * static_cast<double>(hits) / static_cast<double>(report.num_needs);
}

}  // namespace

std::string replay_text(const ReplayReport& report) {
  std::string text = fmt::format(
      "{} tokens, {} layers of {} experts, {} needs; hit rate in %\n"
      "{:>9} {:>8} {:>7} {:>7} {:>7} {:>10} {:>7} {:>12}\n",
      report.num_tokens, report.num_layers, report.num_experts, report.num_needs, "capacity", "experts", "LRU", "LFRU",
      "reuse", "frequency*", "Belady", "gap (points)");
  for (const ReplayRow& row : report.rows) {
    text += fmt::format("{:>7} % {:>8} {:>7.2f} {:>7.2f} {:>7.2f} {:>10.2f} {:>7.2f} {:>12.2f}\n", row.percent,
                        row.capacity, share(row.lru, report), share(row.lfru, report), share(row.reuse, report),
                        share(row.frequency, report), share(row.belady, report), share(row.belady - row.reuse, report));
  }
  return text + "* the experts needed most over the whole trace: frequencies known beforehand\n";
}

std::string replay_json(const ReplayReport& report) {
  nlohmann::ordered_json json = {{"tokens", report.num_tokens},
                                 {"layers", report.num_layers},
                                 {"experts", report.num_experts},
                                 {"needs", report.num_needs},
                                 {"rows", nlohmann::ordered_json::array()}};
  for (const ReplayRow& row : report.rows) {
    json["rows"].push_back({{"percent", row.percent},
                            {"capacity", row.capacity},
                            {"lru", share(row.lru, report)},
                            {"lfru", share(row.lfru, report)},
                            {"reuse", share(row.reuse, report)},
                            {"frequency", share(row.frequency, report)},
                            {"belady", share(row.belady, report)},
                            {"gap_points", share(row.belady - row.reuse, report)}});
  }
  return json.dump();
}

}  // namespace tandem

// model/phase_times.h: where a forward pass spends its time, by mechanism.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string_view>

namespace tandem {

// kAttnRes: the residual stream, mixing and adding.
enum class Phase { kEmbedding, kKda, kMla, kAttnRes, kDenseMlp, kMoe, kNorm, kHead };
inline constexpr int kNumPhases = 8;
inline constexpr std::array<std::string_view, kNumPhases> kPhaseNames = {"embedding", "kda", "mla",  "attn_res",
                                                                         "dense_mlp", "moe", "norm", "head"};

struct PhaseTimes {
  std::array<int64_t, kNumPhases> ns = {};
};

// Adds the scope's duration to one phase; does nothing without a PhaseTimes.
class PhaseTimer {
 public:
  PhaseTimer(PhaseTimes* times, Phase phase) : times_(times), phase_(phase) {
    if (times_ != nullptr) start_ = std::chrono::steady_clock::now();
  }
  ~PhaseTimer() {
    if (times_ == nullptr) return;
    const auto elapsed = std::chrono::steady_clock::now() - start_;
    times_->ns[static_cast<size_t>(phase_)] += std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count();
  }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

 private:
  PhaseTimes* times_;
  Phase phase_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace tandem

#include "engine/doctor/sizing_check.h"

#include <algorithm>

#include "base/cat.h"
#include "cache/cache_layout.h"
#include "engine/doctor/size_words.h"

namespace tandem {

ModelBytes count_model_bytes(const ModelConfig& config, const CheckpointReport& tensors) {
  ModelBytes bytes;
  bytes.experts = static_cast<int64_t>(tensors.by_group[static_cast<size_t>(TensorGroup::kRoutedExpert)].bytes);
  bytes.trunk = static_cast<int64_t>(tensors.text.bytes) - bytes.experts;
  if (config.num_experts > 0) {
    bytes.experts_per_token = bytes.experts / config.num_experts * config.num_experts_per_token;
  }
  bytes.state = make_cache_layout(config, DType::kF32).state_bytes();
  return bytes;
}

void check_sizing(const ModelBytes& bytes, int64_t available_bytes, double random_gb_s, TellCheck tell) {
  DoctorCheck check{.area = "sizing", .name = "memory"};
  check.values = {{"trunk_bytes", bytes.trunk},
                  {"expert_bytes", bytes.experts},
                  {"expert_bytes_per_token", bytes.experts_per_token},
                  {"state_bytes", bytes.state},
                  {"available_bytes", available_bytes}};
  const std::string need =
      cat("the model takes ", bytes_text(bytes.whole()), ": trunk ", bytes_text(bytes.trunk), ", experts ",
          bytes_text(bytes.experts), ", one sequence's states ", bytes_text(bytes.state));
  const std::string seconds_at =
      random_gb_s > 0 ? cat(" (at the measured ", rounded(random_gb_s), " GB/s ") : std::string();
  const auto read_time = [&](int64_t read) {
    return random_gb_s > 0 ? cat(seconds_at, rounded(static_cast<double>(read) / random_gb_s / 1e9), " s)")
                           : std::string();
  };
  if (available_bytes <= 0) {
    check.verdict = Verdict::kSkipped;
    check.message = cat(need, "; the memory of this machine is unknown");
  } else if (bytes.whole() <= available_bytes) {
    check.message = cat(need, "; all of it fits the ", bytes_text(available_bytes), " that can be used");
  } else if (bytes.one_token() <= available_bytes) {
    // What is left for experts after the trunk and the states, as a share of all experts.
    const int64_t room = available_bytes - bytes.trunk - bytes.state;
    check.verdict = Verdict::kWarning;
    check.message =
        cat(need, "; ", bytes_text(available_bytes), " hold the trunk and ",
            rounded(100.0 * static_cast<double>(room) / static_cast<double>(bytes.experts)), " % of the experts, ",
            rounded(static_cast<double>(room) / static_cast<double>(bytes.experts_per_token)),
            " tokens' worth: a token reads up to ", bytes_text(bytes.experts_per_token), " from the drive",
            read_time(bytes.experts_per_token), "; `tandem plan MODEL` predicts the speed");
  } else {
    const int64_t missing = bytes.one_token() - available_bytes;
    check.verdict = Verdict::kWarning;
    check.message = cat(need, "; one token alone reads ", bytes_text(bytes.one_token()), " (its experts ",
                        bytes_text(bytes.experts_per_token), ") and ", bytes_text(available_bytes),
                        " can be used: memory cannot hold one token's working set, so each token reads at least ",
                        bytes_text(missing), " again", read_time(missing), " and a cache of experts gets no hits; add ",
                        bytes_text(missing), " of memory, or see `tandem plan MODEL` for what helps");
  }
  tell(std::move(check));
}

}  // namespace tandem

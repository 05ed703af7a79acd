#include "cache/prefix_match.h"

namespace tandem {

std::string_view miss_reason_name(MissReason reason) {
  switch (reason) {
    case MissReason::kNeverSeen: return "never_seen";
    case MissReason::kEvicted: return "evicted";
    case MissReason::kNotYetWritten: return "not_yet_written";
    case MissReason::kSalt: return "salt";
    case MissReason::kShorterThanUnit: return "shorter_than_unit";
    case MissReason::kNoCheckpoint: return "no_checkpoint";
    case MissReason::kLastToken: return "last_token";
    case MissReason::kQuarantined: return "quarantined";
  }
  return "unknown";
}

}  // namespace tandem

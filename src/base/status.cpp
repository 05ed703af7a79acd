#include "tandem/status.h"

namespace tandem {

std::string_view status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid_argument";
    case StatusCode::kNotFound: return "not_found";
    case StatusCode::kUnsupported: return "unsupported";
    case StatusCode::kIo: return "io";
    case StatusCode::kResourceExhausted: return "resource_exhausted";
    case StatusCode::kFailedPrecondition: return "failed_precondition";
    case StatusCode::kNonFinite: return "non_finite";
    case StatusCode::kDeviceLost: return "device_lost";
    case StatusCode::kCancelled: return "cancelled";
  }
  return "unknown";
}

}  // namespace tandem

// engine/doctor/doctor_check.h: what one check found: plain data, for people and for programs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tandem {

// kSkipped: nothing was judged, and the message says why. kWarning: it works, and worse than it could. kFailed: it does
// not work, or not rightly.
enum class Verdict { kOk, kSkipped, kWarning, kFailed };
std::string_view verdict_name(Verdict verdict);  // "ok", "skipped", "warning", "failed"

using DoctorValue = std::variant<bool, int64_t, double, std::string>;

struct DoctorCheck {
  std::string area;  // "cpu", "memory", "disk", "checkpoint", "self_test", "sizing"
  std::string name;  // within the area, "huge_pages"
  Verdict verdict = Verdict::kOk;
  std::string message = {};                                      // a sentence: what was found, and what to do about it
  std::vector<std::string> details = {};                         // every single fault, a line each
  std::vector<std::pair<std::string, DoctorValue>> values = {};  // the numbers, named
};

}  // namespace tandem

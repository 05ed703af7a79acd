// The two forms of a DoctorReport: lines for a person, one JSON document for a program.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "engine/doctor/doctor.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kVerdictWidth = 8;
constexpr size_t kNameWidth = 29;

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk: return "ok";
    case Verdict::kSkipped: return "skipped";
    case Verdict::kWarning: return "warning";
    case Verdict::kFailed: return "failed";
  }
  return "?";
}

std::string doctor_check_text(const DoctorCheck& check, size_t max_details) {
  std::string text = cat(padded(std::string(verdict_name(check.verdict)), kVerdictWidth),
                         padded(cat(check.area, ".", check.name), kNameWidth), " ", check.message, "\n");
  const size_t shown = std::min(check.details.size(), max_details);
  const std::string indent(kVerdictWidth, ' ');
  for (size_t i = 0; i < shown; ++i) text += cat(indent, "- ", check.details[i], "\n");
  if (shown < check.details.size()) {
    text += cat(indent, "… and ", check.details.size() - shown, " more; --json lists all\n");
  }
  return text;
}

std::string doctor_summary_text(const DoctorReport& report) {
  const int64_t failed = report.count(Verdict::kFailed);
  const int64_t warnings = report.count(Verdict::kWarning);
  return cat(report.checks.size(), " checks: ", report.count(Verdict::kOk), " ok, ", warnings,
             warnings == 1 ? " warning, " : " warnings, ", failed, " failed, ", report.count(Verdict::kSkipped),
             " skipped\n");
}

std::string doctor_json(const DoctorReport& report) {
  Json document;
  document["verdict"] = report.has_failed() ? "failed" : report.count(Verdict::kWarning) > 0 ? "warning" : "ok";
  for (const Verdict verdict : {Verdict::kOk, Verdict::kWarning, Verdict::kFailed, Verdict::kSkipped}) {
    document["counts"][std::string(verdict_name(verdict))] = report.count(verdict);
  }
  document["checks"] = Json::array();
  for (const DoctorCheck& check : report.checks) {
    Json entry;
    entry["area"] = check.area;
    entry["name"] = check.name;
    entry["verdict"] = verdict_name(check.verdict);
    entry["message"] = check.message;
    entry["details"] = check.details;
    entry["values"] = Json::object();
    for (const auto& [name, value] : check.values) {
      std::visit([&, key = name](const auto& held) { entry["values"][key] = held; }, value);
    }
    document["checks"].push_back(std::move(entry));
  }
  // File names may hold bytes that are no UTF-8; JSON cannot.
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tandem

// evaluate/eval_report.cpp: an evaluation as a table for people and as JSON for programs.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "evaluate/evaluation.h"
#include "evaluate/wilson.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

double share_of(const EvalShare& share) {
  return share.cases == 0 ? 0 : static_cast<double>(share.successes) / static_cast<double>(share.cases);
}

double bits_per_byte(uint64_t compressed_bytes, int64_t bytes) {
  return bytes == 0 ? 0 : 8.0 * static_cast<double>(compressed_bytes) / static_cast<double>(bytes);
}

void append_prose(const ProseScore& prose, std::string& out) {
  if (!prose.reason.empty()) {
    out += cat("prose: not measured: ", prose.reason, "\n\n");
    return;
  }
  out += fmt::format("{:<44} {:>12} {:>10} {:>12}\n", "held-out prose", "bytes", "bits/byte", "tokens/byte");
  const auto line = [&](std::string_view name, const TextScore& score) {
    out += fmt::format("{:<44} {:>12} {:>10.4f} {:>12.4f}\n", name, score.bytes, score.bits_per_byte(),
                       score.tokens_per_byte());
  };
  for (const ProseScore::File& file : prose.files) line(file.path, file.score);
  line("all, this model", prose.total);
  for (const CompressedSize& size : prose.compressors) {
    const std::string name = cat("all, ", size.command);
    if (size.bytes) {
      out += fmt::format("{:<44} {:>12} {:>10.4f}\n", name, prose.total.bytes,
                         bits_per_byte(*size.bytes, prose.total.bytes));
    } else {
      out += fmt::format("{:<44} not available: {}\n", name, size.reason);
    }
  }
  out += "\n";
}

void append_sections(const std::vector<EvalSection>& sections, std::string& out) {
  if (sections.empty()) return;
  out += fmt::format("{:<16} {:<16} {:>8} {:>18} {:>6} {:>8} {:>8}\n", "test chats, greedy", "", "share",
                     "95 % interval", "cases", "ended", "seconds");
  for (const EvalSection& section : sections) {
    bool is_first = true;
    for (const EvalShare& share : section.shares) {
      const ShareInterval interval = wilson_interval(share.successes, share.cases);
      out += fmt::format("{:<16} {:<16} {:>7.1f}% {:>8.1f}% – {:>5.1f}% {:>6}", is_first ? section.name : "",
                         share.metric, 100 * share_of(share), 100 * interval.low, 100 * interval.high, share.cases);
      if (is_first) {
        out += fmt::format(" {:>7.1f}% {:>8.1f}",
                           100.0 * static_cast<double>(section.ended) / static_cast<double>(section.cases),
                           section.seconds);
        if (section.times_trained_length > 0)
          out += fmt::format("  {:g}× the trained length", section.times_trained_length);
      }
      out += "\n";
      is_first = false;
    }
  }
}

Json prose_json(const ProseScore& prose) {
  if (!prose.reason.empty()) return {{"reason", prose.reason}};
  const auto score_json = [](const TextScore& score) -> Json {
    return {{"bytes", score.bytes},
            {"tokens", score.tokens},
            {"bits_per_byte", score.bits_per_byte()},
            {"tokens_per_byte", score.tokens_per_byte()}};
  };
  Json out = score_json(prose.total);
  out["files"] = Json::array();
  for (const ProseScore::File& file : prose.files) {
    Json one = {{"path", file.path}};
    one.update(score_json(file.score));
    out["files"].push_back(std::move(one));
  }
  out["compressors"] = Json::array();
  for (const CompressedSize& size : prose.compressors) {
    Json one = {{"command", size.command}};
    if (size.bytes) {
      one["bytes"] = *size.bytes;
      one["bits_per_byte"] = bits_per_byte(*size.bytes, prose.total.bytes);
    } else {
      one["reason"] = size.reason;
    }
    out["compressors"].push_back(std::move(one));
  }
  return out;
}

Json section_json(const EvalSection& section) {
  Json out = {{"name", section.name},
              {"cases", section.cases},
              {"ended", section.ended},
              {"prompt_tokens", section.prompt_tokens},
              {"reply_tokens", section.reply_tokens},
              {"seconds", section.seconds}};
  if (section.times_trained_length > 0) out["times_trained_length"] = section.times_trained_length;
  out["shares"] = Json::array();
  for (const EvalShare& share : section.shares) {
    const ShareInterval interval = wilson_interval(share.successes, share.cases);
    out["shares"].push_back({{"metric", share.metric},
                             {"successes", share.successes},
                             {"cases", share.cases},
                             {"share", share_of(share)},
                             {"low", interval.low},
                             {"high", interval.high}});
  }
  return out;
}

}  // namespace

std::string eval_report_text(const EvalReport& report) {
  std::string out = cat("model ", report.model, ", seed ", report.seed, "\n\n");
  if (report.prose) append_prose(*report.prose, out);
  if (report.law) {
    out += fmt::format("prefill ≡ decode on {}: top-1 equal on {} of {} positions, max |logit difference| {:.2g}\n\n",
                       report.law_text, report.law->same_best, report.law->positions, report.law->max_difference);
  }
  append_sections(report.sections, out);
  for (const EvalFailure& failure : report.failures) {
    out += cat("\n", failure.section, ": ", failure.fault, "\n  prompt    …", failure.prompt_tail, "\n  expected  ",
               failure.expected, "\n  got       ", failure.got, "\n");
  }
  return out + fmt::format("\nin all {:.1f} s\n", report.seconds);
}

std::string eval_report_json(const EvalReport& report) {
  Json out = {{"model", report.model}, {"seed", report.seed}, {"seconds", report.seconds}};
  if (report.prose) out["prose"] = prose_json(*report.prose);
  if (report.law) {
    out["prefill_is_decode"] = {{"text", report.law_text},
                                {"positions", report.law->positions},
                                {"same_best", report.law->same_best},
                                {"max_difference", report.law->max_difference}};
  }
  out["sections"] = Json::array();
  for (const EvalSection& section : report.sections) out["sections"].push_back(section_json(section));
  out["failures"] = Json::array();
  for (const EvalFailure& failure : report.failures) {
    out["failures"].push_back({{"section", failure.section},
                               {"fault", failure.fault},
                               {"prompt_tail", failure.prompt_tail},
                               {"expected", failure.expected},
                               {"got", failure.got}});
  }
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tandem

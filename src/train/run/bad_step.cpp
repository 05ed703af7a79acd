#include "train/run/bad_step.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "weights/atomic_file.h"

namespace tandem::train {
namespace {

using nlohmann::ordered_json;

// JSON has no NaN and no infinity.
ordered_json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

}  // namespace

Result<std::string> write_bad_step(const Recipe& recipe, const RunData& data, const BadStep& step) {
  ordered_json out = {
      {"step", step.step}, {"reason", step.reason}, {"loss", number(step.loss)}, {"grad_norm", number(step.grad_norm)}};
  PackedSequence sequence;
  for (const SequencePlace& place : data.step_places(step.step - 1)) {
    ordered_json item = {{"stage", place.stage},
                         {"data", recipe.curriculum[place.stage].data},
                         {"epoch", place.epoch},
                         {"sequence", place.sequence}};
    if (const auto file = data.file_place(recipe, place)) {
      item["shard"] = file->path;
      item["token"] = file->token;
    }
    data.read(place, sequence);
    item["tokens"] = sequence.tokens;
    out["sequences"].push_back(std::move(item));
  }
  for (const auto& [name, norm] : step.grad_norms) out["grad_norms"][name] = number(norm);
  const std::string path = cat(recipe.run, "/bad-step-", step.step, ".json");
  const Status written =
      write_file_atomic(path, out.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n");
  return written.is_ok() ? Result<std::string>(path) : Result<std::string>(written);
}

}  // namespace tandem::train

#include <nlohmann/json.hpp>

#include "engine/serving/verifier.h"
#include "tensor/dtype.h"

namespace tandem {

std::string verify_report_json(const VerifyJob& job, const CacheMismatch& mismatch, const LoadedModel& model,
                               const ServingOptions& options) {
  nlohmann::ordered_json report;
  report["model"] = model.dir();
  report["request"] = job.request_id;
  report["mismatch"] = {{"what", mismatch.what},       {"layer", mismatch.layer},       {"position", mismatch.position},
                        {"element", mismatch.element}, {"expected", mismatch.expected}, {"found", mismatch.found}};
  report["hit_tokens"] = job.hit;
  report["options"] = {{"hash_unit", options.hash_unit},
                       {"checkpoint_interval", options.checkpoint_interval},
                       {"checkpoints_per_chain", options.checkpoints_per_chain},
                       {"token_budget", options.scheduler.token_budget},
                       {"cache_dtype", dtype_name(model.cache_layout().dtype)},
                       {"activation_dtype", dtype_name(model.model().options().activation_dtype)},
                       {"threads", model.exec().pool.num_threads()}};
  auto& path = report["path"] = nlohmann::ordered_json::array();
  for (const PathSpan& span : job.path.spans) {
    path.push_back({{"begin", span.begin}, {"mode", span.mode == StepMode::kPrefill ? "prefill" : "decode"}});
  }
  auto& tokens = report["tokens"] = nlohmann::ordered_json::array();
  for (const TokenId token : job.tokens) tokens.push_back(token.value);
  // A request may have any bytes as its name.
  return report.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace tandem

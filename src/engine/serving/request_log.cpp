#include "engine/serving/request_log.h"

#include "base/cat.h"

namespace tandem {

bool RequestLog::open(const std::string& id, const CacheScope& scope) {
  const std::lock_guard lock(mu_);
  return records_.try_emplace(id, Record{.scope = scope, .match = std::nullopt, .prompt = {}}).second;
}

void RequestLog::withdraw(const std::string& id) {
  const std::lock_guard lock(mu_);
  records_.erase(id);
}

void RequestLog::note_match(const std::string& id, const PrefixMatch& match, std::vector<TokenId> prompt) {
  const std::lock_guard lock(mu_);
  const auto at = records_.find(id);
  if (at == records_.end()) return;
  at->second.match = match;
  at->second.prompt = std::move(prompt);
}

void RequestLog::close(const std::string& id) {
  const std::lock_guard lock(mu_);
  const auto at = records_.find(id);
  if (at == records_.end()) return;
  finished_tokens_ += static_cast<int64_t>(at->second.prompt.size());
  finished_.push_back(id);
  while (!finished_.empty() &&
         (static_cast<int64_t>(finished_.size()) > max_finished_ || finished_tokens_ > max_tokens_)) {
    const auto oldest = records_.find(finished_.front());
    finished_tokens_ -= static_cast<int64_t>(oldest->second.prompt.size());
    records_.erase(oldest);
    finished_.pop_front();
  }
}

Result<CacheExplanation> RequestLog::explain(const std::string& id, const std::string& owner) const {
  const std::lock_guard lock(mu_);
  const auto at = records_.find(id);
  // Another owner's request is not even admitted to exist.
  if (at == records_.end() || at->second.scope.owner != owner) {
    return Status::not_found(cat("request \"", id, "\" is not running and not remembered"));
  }
  const Record& record = at->second;
  if (!record.match) return Status::not_found(cat("request \"", id, "\" waits and has not been scheduled"));
  return CacheExplanation{.request_id = id,
                          .match = *record.match,
                          .salt_used = record.scope.salt.empty() ? "" : "set",
                          .prefill_token_seconds = 0,
                          .prompt = record.prompt};
}

}  // namespace tandem

// engine/serving/request_log.h: the requests alive and remembered: which ids are taken, and what the cache gave to
// each.
//
//   A finished request is remembered until newer ones push it out: by their number or by their prompts' tokens.
//   Threading: any thread, guarded by a mutex of its own.
#pragma once

#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/service.h"

namespace tandem {

class RequestLog {
 public:
  RequestLog(int64_t max_finished, int64_t max_tokens) : max_finished_(max_finished), max_tokens_(max_tokens) {}

  bool open(const std::string& id, const CacheScope& scope);  // false: the id is taken
  void withdraw(const std::string& id);                       // an opened request that was refused after all
  void note_match(const std::string& id, const PrefixMatch& match, std::vector<TokenId> prompt);
  void close(const std::string& id);

  // kNotFound: unknown, another owner's, or not scheduled so far.
  Result<CacheExplanation> explain(const std::string& id, const std::string& owner) const;

 private:
  struct Record {
    CacheScope scope;
    std::optional<PrefixMatch> match;  // none: it has not been scheduled
    std::vector<TokenId> prompt;
  };

  const int64_t max_finished_;
  const int64_t max_tokens_;
  mutable std::mutex mu_;
  std::unordered_map<std::string, Record> records_;
  std::deque<std::string> finished_;  // oldest first
  int64_t finished_tokens_ = 0;
};

}  // namespace tandem

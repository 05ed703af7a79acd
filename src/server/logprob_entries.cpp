#include "server/logprob_entries.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/cat.h"
#include "base/utf8.h"
#include "text/reply_json.h"

namespace tandem {

double finite_logprob(double logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

std::string logprob_entry_json(std::string_view text, std::string_view bytes, double logprob) {
  std::string out =
      cat(R"({"token":")", json_escaped(text), R"(","logprob":)", finite_logprob(logprob), R"(,"bytes":[)");
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) out += ',';
    out += cat(static_cast<int>(static_cast<unsigned char>(bytes[i])));
  }
  return out + "]";
}

std::string top_logprobs_json(const Tokenizer& tokenizer, const std::vector<TokenLogprob>& top, size_t wanted) {
  std::string out = "[";
  for (size_t i = 0; i < std::min(wanted, top.size()); ++i) {
    if (!tokenizer.contains(top[i].token)) continue;
    const std::string_view bytes = tokenizer.token_bytes(top[i].token);
    out += cat(out.size() > 1 ? "," : "", logprob_entry_json(replace_invalid_utf8(bytes), bytes, top[i].logprob), "}");
  }
  return out + "]";
}

void LogprobEntries::end() {
  open_.text += decoder_.flush();
  if (has_open_) unmatched_.push_back(std::exchange(open_, {}));
  has_open_ = false;
}

void LogprobEntries::token(const TokenOutput& output) {
  if (!tokenizer_.contains(output.token)) return;
  if (tokenizer_.is_control(output.token)) {
    end();
    return;
  }
  if (!has_open_) open_.top = top_logprobs_json(tokenizer_, output.top, num_alternatives_);
  has_open_ = true;
  open_.logprob += finite_logprob(output.logprob.value_or(0.f));
  open_.text += decoder_.append(output.token);
  open_.bytes += tokenizer_.token_bytes(output.token);
  if (!is_valid_utf8(open_.bytes)) {
    // Whole when no byte waits for more: broken bytes never will.
    size_t at = 0;
    while (at < open_.bytes.size()) {
      const Utf8Step step = decode_utf8(std::string_view(open_.bytes).substr(at));
      if (step.truncated) return;
      at += step.size;
    }
  }
  unmatched_.push_back(std::exchange(open_, {}));
  has_open_ = false;
}

void LogprobEntries::content(std::string_view text) {
  unmatched_text_ += text;
  if (!has_open_) match();
}

// The newest groups that spell the content; those between and before are headers and other channels.
void LogprobEntries::match() {
  std::string_view rest = unmatched_text_;
  std::vector<Entry> found;
  for (auto group = unmatched_.rbegin(); group != unmatched_.rend() && !rest.empty(); ++group) {
    if (group->text.empty() || !rest.ends_with(group->text)) continue;
    rest.remove_suffix(group->text.size());
    const std::string bytes = is_valid_utf8(group->bytes) ? group->text : group->bytes;
    found.push_back(
        {content_bytes_ + static_cast<int64_t>(rest.size()),
         cat(logprob_entry_json(group->text, bytes, group->logprob), R"(,"top_logprobs":)", group->top, "}")});
  }
  for (auto entry = found.rbegin(); entry != found.rend(); ++entry) ready_.push_back(std::move(*entry));
  content_bytes_ += static_cast<int64_t>(unmatched_text_.size());
  unmatched_text_.clear();
  unmatched_.clear();
}

std::string LogprobEntries::take(int64_t end) {
  std::string out;
  for (; num_taken_ < ready_.size() && ready_[num_taken_].begin < end; ++num_taken_) {
    out += cat(out.empty() ? "" : ",", ready_[num_taken_].json);
    ready_[num_taken_].json.clear();
  }
  return out;
}

}  // namespace tandem

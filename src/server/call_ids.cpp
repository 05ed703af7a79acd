#include "server/call_ids.h"

#include "base/cat.h"
#include "sample/sampler.h"

namespace tandem {
namespace {

constexpr size_t kMaxNameBytes = 48;  // with _ and 15 digits: 64
constexpr uint64_t kLeastNumber = 100'000'000'000;
constexpr uint64_t kNumbers = 1'000'000'000'000'000 - kLeastNumber;

std::string plain_name(std::string_view name) {
  std::string out;
  for (const char c : name.substr(0, kMaxNameBytes)) {
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    const bool is_digit = c >= '0' && c <= '9';
    if (out.empty() && is_digit) out.push_back('_');
    out.push_back(is_letter || is_digit ? c : '_');
  }
  if (out.size() > kMaxNameBytes) out.resize(kMaxNameBytes);
  return out.empty() ? "call" : out;
}

}  // namespace

CallIds::CallIds(ChatFormat format, const std::vector<Message>& conversation) : format_(format) {
  for (const Message& message : conversation) {
    for (const ToolCall& call : message.tool_calls) {
      if (call.id) used_.insert(*call.id);
      ++num_earlier_calls_;
    }
    if (message.tool_call_id) used_.insert(*message.tool_call_id);
  }
}

std::string CallIds::next(std::string_view tool_name, int64_t index) {
  for (int64_t attempt = 0;; ++attempt) {
    std::string id = format_ == ChatFormat::kK2
                         ? cat("functions.", tool_name, ":", num_earlier_calls_ + index + attempt)
                         : cat(plain_name(tool_name), "_", kLeastNumber + random_seed() % kNumbers);
    if (used_.insert(id).second) return id;
  }
}

}  // namespace tandem

#include "server/api_keys.h"

#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "base/read_file.h"
#include "base/sha256.h"
#include "server/http_message.h"
#include "text/trimmed.h"

namespace tandem {
namespace {

constexpr int64_t kMaxKeyFileBytes = int64_t{1} << 20;

std::string owner_id(std::string_view key) { return cat("key-", sha256_hex(sha256(key)).substr(0, 32)); }

// Looks at every byte of `given`, whatever they are.
bool is_same_key(std::string_view key, std::string_view given) {
  unsigned difference = key.size() == given.size() ? 0u : 1u;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(key[i % key.size()]);
  }
  return difference == 0;
}

void append_pieces(std::vector<std::string>& out, std::string_view text, std::string_view separators) {
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(separators), text.size());
    const std::string_view piece = trimmed(text.substr(0, end));
    if (!piece.empty() && piece.front() != '#') out.emplace_back(piece);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// The key a request presents; x-api-key where there is no Bearer.
std::optional<std::string_view> presented_key(const HttpRequest& request) {
  if (const auto authorization = request.header("authorization")) {
    const size_t space = authorization->find(' ');
    if (space != std::string_view::npos && to_lower_ascii(authorization->substr(0, space)) == "bearer") {
      return trimmed(authorization->substr(space + 1));
    }
  }
  if (const auto key = request.header("x-api-key")) return trimmed(*key);
  return std::nullopt;
}

}  // namespace

Result<ApiKeys> ApiKeys::create(std::vector<std::string> keys) {
  ApiKeys out;
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool is_printable = std::all_of(keys[i].begin(), keys[i].end(), [](char c) { return c > ' ' && c < '\x7f'; });
    if (keys[i].empty() || !is_printable) {
      return Status::invalid(cat("API key ", i + 1, " of ", keys.size(),
                                 ": expected printable ASCII characters without spaces, found ",
                                 keys[i].empty() ? "nothing" : "others"));
    }
    std::string owner = owner_id(keys[i]);
    out.keys_.push_back({std::move(keys[i]), std::move(owner)});
  }
  return out;
}

Result<ApiKeys> ApiKeys::load(std::vector<std::string> flags, const std::optional<std::string>& environment,
                              const std::string& file_path) {
  std::vector<std::string> keys = std::move(flags);
  if (environment) {
    const size_t before = keys.size();
    append_pieces(keys, *environment, ",\n");
    if (keys.size() == before) return Status::invalid("the API keys of the environment: expected a key, found none");
  }
  if (!file_path.empty()) {
    const auto text = read_file(file_path, "a file of API keys", kMaxKeyFileBytes);
    if (!text.is_ok()) return text.status();
    const size_t before = keys.size();
    append_pieces(keys, text.value(), "\n");
    if (keys.size() == before) return Status::invalid(cat(file_path, ": expected API keys, one a line, found none"));
  }
  return create(std::move(keys));
}

std::optional<std::string> ApiKeys::owner_of(const HttpRequest& request) const {
  if (keys_.empty()) return "";
  const auto given = presented_key(request);
  if (!given) return std::nullopt;
  std::optional<std::string> owner;
  for (const Key& key : keys_) {
    if (is_same_key(key.text, *given)) owner = key.owner;
  }
  return owner;
}

HttpResponse ApiKeys::unauthorized() {
  HttpResponse response =
      http_error(401, "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY", "invalid_api_key");
  response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace tandem

// server/api_keys.h: who may ask. Immutable after creation: any thread. No message and no owner id contains a key.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/http_exchange.h"

namespace tandem {

class ApiKeys {
 public:
  ApiKeys() = default;  // no key: everybody may ask
  // kInvalidArgument: an empty key, or one with other than printable ASCII without spaces; the message says which.
  static Result<ApiKeys> create(std::vector<std::string> keys);
  // The keys of all sources together: flags, the environment variable's text (keys between commas or line breaks), and
  // a file of one key a line ("": none); in both, what begins with '#' is left out. A file or variable without a key is
  // kInvalidArgument: an open server must not come of an empty secret.
  static Result<ApiKeys> load(std::vector<std::string> flags, const std::optional<std::string>& environment,
                              const std::string& file_path);

  bool is_open() const { return keys_.empty(); }

  // The owner of the key in "Authorization: Bearer …" or "x-api-key", a stable id, when the request may be served;
  // none: refuse it with unauthorized(). Without keys the owner is "", whatever the request presents. The time does
  // not depend on where a wrong key differs.
  std::optional<std::string> owner_of(const HttpRequest& request) const;
  static HttpResponse unauthorized();
  // /health and /ping are for machines that watch.
  static bool needs_key(std::string_view path) { return path != "/health" && path != "/ping"; }

 private:
  struct Key {
    std::string text;
    std::string owner;
  };
  std::vector<Key> keys_;
};

}  // namespace tandem

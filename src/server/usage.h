// server/usage.h: what a reply cost, as the `usage` object.
#pragma once

#include <cstdint>
#include <string>

#include "base/cat.h"

namespace tandem {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t reasoning_tokens = 0;
};

// `cache`: JSON of the compact explanation, or empty.
inline std::string usage_json(const Usage& usage, const std::string& cache = "") {
  return cat(R"({"prompt_tokens":)", usage.prompt_tokens, R"(,"completion_tokens":)", usage.completion_tokens,
             R"(,"total_tokens":)", usage.prompt_tokens + usage.completion_tokens,
             R"(,"prompt_tokens_details":{"cached_tokens":)", usage.cached_tokens,
             R"(},"completion_tokens_details":{"reasoning_tokens":)", usage.reasoning_tokens, "}",
             cache.empty() ? "" : R"(,"cache":)", cache, "}");
}

}  // namespace tandem

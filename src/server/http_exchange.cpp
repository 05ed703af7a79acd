#include "server/http_exchange.h"

namespace tandem {

std::optional<std::string_view> HttpRequest::header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers) {
    if (name == lower_case_name) return value;
  }
  return std::nullopt;
}

}  // namespace tandem

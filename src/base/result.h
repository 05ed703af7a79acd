// base/result.h: a value or the Status that says why there is none (std::expected is not in our toolchain).
#pragma once

#include <optional>
#include <utility>

#include "base/check.h"
#include "tandem/status.h"

namespace tandem {

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit by design, `return value;`
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit by design, `return status;`
    TANDEM_CHECK(!status_.is_ok(), "a Result without a value needs an error");
  }

  bool is_ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & {
    TANDEM_CHECK(value_.has_value(), status_.message());
    return *value_;
  }
  const T& value() const& {
    TANDEM_CHECK(value_.has_value(), status_.message());
    return *value_;
  }
  T&& value() && {
    TANDEM_CHECK(value_.has_value(), status_.message());
    return std::move(*value_);
  }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace tandem

// Return early with the error of a Status expression.
#define TANDEM_RETURN_IF_ERROR(expr)                                                              \
  do {                                                                                            \
    if (::tandem::Status tandem_status_ = (expr); !tandem_status_.is_ok()) return tandem_status_; \
  } while (false)

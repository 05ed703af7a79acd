// include/tandem/status.h: the outcome of an operation that the outside world can make fail.
//
// A Status is either OK or a code plus a message that names the object, what was expected and what was found.
// Library code never throws; a bug in Tandem itself aborts through TANDEM_CHECK instead.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace tandem {

enum class StatusCode {
  kOk,
  kInvalidArgument,     // the input is wrong whatever the state of the machine
  kNotFound,            // a file, tensor, name or token that was asked for does not exist
  kUnsupported,         // understood, and this build or this backend does not do it
  kIo,                  // the operating system refused: read, write, map, sync
  kResourceExhausted,   // memory, disk or context limit
  kFailedPrecondition,  // right in itself, wrong at this moment (a cache at another position)
  kNonFinite,           // a NaN or infinity where a number was required
  kDeviceLost,          // the accelerator's context is poisoned: drain and stop
  kCancelled,
};

std::string_view status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status ok() { return {}; }
  static Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }
  static Status not_found(std::string message) { return {StatusCode::kNotFound, std::move(message)}; }
  static Status unsupported(std::string message) { return {StatusCode::kUnsupported, std::move(message)}; }
  static Status io(std::string message) { return {StatusCode::kIo, std::move(message)}; }
  static Status exhausted(std::string message) { return {StatusCode::kResourceExhausted, std::move(message)}; }
  static Status failed_precondition(std::string message) {
    return {StatusCode::kFailedPrecondition, std::move(message)};
  }
  static Status non_finite(std::string message) { return {StatusCode::kNonFinite, std::move(message)}; }

  bool is_ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

}  // namespace tandem

// base/check.h: invariants of our own code. A failed check is a bug in Tandem and aborts the process with
// the place and the reason; user input never reaches one.
#pragma once

#include <string_view>

namespace tandem {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, std::string_view reason);

}  // namespace tandem

#define TANDEM_CHECK(condition, reason)                                                 \
  do {                                                                                  \
    if (!(condition)) ::tandem::check_failed(__FILE__, __LINE__, #condition, (reason)); \
  } while (false)

#ifdef NDEBUG
#define TANDEM_DCHECK(condition, reason) \
  do {                                   \
  } while (false)
#else
#define TANDEM_DCHECK(condition, reason) TANDEM_CHECK(condition, reason)
#endif

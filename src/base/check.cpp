#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace tandem {

void check_failed(const char* file, int line, const char* condition, std::string_view reason) {
  std::fprintf(stderr, "tandem: internal error at %s:%d: %s: %.*s\n", file, line, condition,
               static_cast<int>(reason.size()), reason.data());
  std::abort();
}

}  // namespace tandem

#include "engine/doctor/size_words.h"

#include <cmath>

#include "base/cat.h"

namespace tandem {

std::string rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return cat(value);
  const double digits = 2 - std::floor(std::log10(std::abs(value)));
  if (digits <= 0) return cat(static_cast<int64_t>(std::llround(value)));
  const double unit = std::pow(10.0, digits);
  return cat(std::round(value * unit) / unit);
}

std::string bytes_text(double bytes) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < std::size(units)) {
    bytes /= 1000;
    ++unit;
  }
  return cat(rounded(bytes), " ", units[unit]);
}

}  // namespace tandem

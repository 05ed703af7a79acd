// engine/doctor/size_words.h: byte counts and rates as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace tandem {

std::string bytes_text(double bytes);  // "1.56 TB", "17.5 MB", "512 B": powers of 1000, three digits
inline std::string bytes_text(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }
inline std::string bytes_text(uint64_t bytes) { return bytes_text(static_cast<double>(bytes)); }
std::string rounded(double value);  // three significant digits, "0.0312", "312", "1230"

}  // namespace tandem

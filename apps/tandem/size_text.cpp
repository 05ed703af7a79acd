#include "size_text.h"

#include <array>
#include <charconv>

#include "base/cat.h"

namespace tandem::app {
namespace {

struct SizeUnit {
  std::string_view suffix;
  uint64_t bytes;
};
constexpr std::array kSizeUnits = {
    SizeUnit{"", 1},
    SizeUnit{"B", 1},
    SizeUnit{"KB", 1'000},
    SizeUnit{"MB", 1'000'000},
    SizeUnit{"GB", 1'000'000'000},
    SizeUnit{"TB", 1'000'000'000'000},
    SizeUnit{"KiB", uint64_t{1} << 10},
    SizeUnit{"MiB", uint64_t{1} << 20},
    SizeUnit{"GiB", uint64_t{1} << 30},
    SizeUnit{"TiB", uint64_t{1} << 40},
};

}  // namespace

std::optional<uint64_t> parse_size(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number == 0) return std::nullopt;
  const std::string_view suffix = text.substr(static_cast<size_t>(end - text.data()));
  for (const SizeUnit& unit : kSizeUnits) {
    uint64_t bytes = 0;
    if (suffix == unit.suffix && !__builtin_mul_overflow(number, unit.bytes, &bytes)) return bytes;
  }
  return std::nullopt;
}

Result<int64_t> size_flag(std::string_view name, std::string_view text) {
  const std::optional<uint64_t> bytes = parse_size(text);
  if (bytes && *bytes <= static_cast<uint64_t>(INT64_MAX)) return static_cast<int64_t>(*bytes);
  return Status::invalid(cat(name, ": expected a positive size such as 500MB, 4GiB or 1000000, found \"", text, "\""));
}

}  // namespace tandem::app

#include "text/unicode_classes.h"

#include <cstring>

namespace tandem {

UnicodeClasses::UnicodeClasses() : table_(std::make_unique<uint8_t[]>(kNumCodePoints)) {
  const auto ranges = unicode_class_ranges();
  for (size_t i = 0; i < ranges.size(); ++i) {
    const uint32_t end = i + 1 < ranges.size() ? ranges[i + 1].first : kNumCodePoints;
    std::memset(table_.get() + ranges[i].first, ranges[i].classes, end - ranges[i].first);
  }
}

}  // namespace tandem

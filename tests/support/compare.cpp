#include "support/compare.h"

#include <bit>
#include <cmath>

namespace tandem::test {

float tolerance_f32(int64_t reduced, float scale) {
  return 8.f * 0x1p-24f * std::sqrt(static_cast<float>(reduced)) * scale;
}

float max_abs(std::span<const float> values) {
  float result = 0.f;
  for (const float v : values) result = std::fmax(result, std::fabs(v));
  return result;
}

::testing::AssertionResult all_close(std::span<const float> actual, std::span<const float> expected, float tolerance) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure() << actual.size() << " elements, expected " << expected.size();
  }
  size_t worst = 0;
  float worst_distance = -1.f;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == expected[i]) continue;  // covers equal infinities
    float distance = std::fabs(actual[i] - expected[i]);
    if (std::isnan(distance)) distance = INFINITY;
    if (distance > worst_distance) {
      worst = i;
      worst_distance = distance;
    }
  }
  if (worst_distance <= tolerance) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "element " << worst << " is " << actual[worst] << ", expected "
                                       << expected[worst] << ": off by " << worst_distance << ", tolerance "
                                       << tolerance;
}

::testing::AssertionResult all_equal_bits(std::span<const float> actual, std::span<const float> expected) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure() << actual.size() << " elements, expected " << expected.size();
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::bit_cast<uint32_t>(actual[i]) != std::bit_cast<uint32_t>(expected[i])) {
      return ::testing::AssertionFailure()
             << "element " << i << " is " << actual[i] << ", expected exactly " << expected[i];
    }
  }
  return ::testing::AssertionSuccess();
}

BackendFixture::BackendFixture(KernelBackend backend, int num_threads)
    : pool_(num_threads),
      table_(make_kernel_table(detect_cpu_features(), backend).value()),
      ctx_{pool_, arena_, table_} {}

void for_each_backend(const std::function<void(BackendFixture&)>& body) {
  for (const KernelBackend backend : available_backends(detect_cpu_features())) {
    SCOPED_TRACE(std::string(kernel_backend_name(backend)));
    BackendFixture fixture(backend);
    body(fixture);
  }
}

}  // namespace tandem::test

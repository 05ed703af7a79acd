#include "kernels/kernel_table.h"

#include <gmock/gmock.h>

#include "kernels/backend_entries.h"

namespace tandem::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr CpuFeatures kOld{};
constexpr CpuFeatures kAvx2Only{true, false};
constexpr CpuFeatures kAll{true, true};

TEST(KernelTable, BackendsFollowTheFeatures) {
  EXPECT_THAT(available_backends(kOld), ElementsAre(KernelBackend::kRef, KernelBackend::kPortable));
  EXPECT_THAT(available_backends(kAvx2Only),
              ElementsAre(KernelBackend::kRef, KernelBackend::kPortable, KernelBackend::kAvx2));
  EXPECT_THAT(available_backends(kAll),
              ElementsAre(KernelBackend::kRef, KernelBackend::kPortable, KernelBackend::kAvx2, KernelBackend::kAvx512));
}

TEST(KernelTable, AutoTakesTheBestAndARequestIsObeyedOrRefused) {
  EXPECT_EQ(make_kernel_table(kOld, std::nullopt).value().backend, KernelBackend::kPortable);
  EXPECT_EQ(make_kernel_table(kAvx2Only, std::nullopt).value().backend, KernelBackend::kAvx2);
  EXPECT_EQ(make_kernel_table(kAll, std::nullopt).value().backend, KernelBackend::kAvx512);
  EXPECT_EQ(make_kernel_table(kAll, KernelBackend::kRef).value().backend, KernelBackend::kRef);
  const auto refused = make_kernel_table(kAvx2Only, KernelBackend::kAvx512);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(refused.status().message(),
              HasSubstr("avx512: this CPU lacks its instructions; it runs ref, portable, avx2"));
}

TEST(KernelTable, EntriesAreThoseOfTheBackendAndTheRouterIsTheReference) {
  for (const KernelBackend backend : available_backends(kAll)) {
    const KernelTable table = make_kernel_table(kAll, backend).value();
    EXPECT_EQ(table.router_select, &ref::router_select);
    EXPECT_NE(table.kda_chunked, nullptr);
  }
  EXPECT_EQ(make_kernel_table(kAll, KernelBackend::kRef).value().linear, &ref::linear);
  EXPECT_EQ(make_kernel_table(kAll, KernelBackend::kPortable).value().linear, &portable::linear);
#if defined(__x86_64__)
  EXPECT_EQ(make_kernel_table(kAll, KernelBackend::kAvx2).value().mla_absorbed, &avx2::mla_absorbed);
  EXPECT_EQ(make_kernel_table(kAll, KernelBackend::kAvx512).value().moe_experts, &avx512::moe_experts);
#endif
}

TEST(KernelTable, DescribesTheBackendAndWhatDiffersFromIt) {
  EXPECT_EQ(make_kernel_table(kOld, std::nullopt).value().describe(), "kernels: portable, router_select=ref");
  EXPECT_EQ(make_kernel_table(kOld, KernelBackend::kRef).value().describe(), "kernels: ref");
}

TEST(KernelTable, NeonIsThereOnArmAlone) {
#if defined(__aarch64__)
  EXPECT_EQ(make_kernel_table(detect_cpu_features(), std::nullopt).value().backend, KernelBackend::kNeon);
  EXPECT_EQ(make_kernel_table(detect_cpu_features(), std::nullopt).value().linear, &neon::linear);
#else
  EXPECT_FALSE(detect_cpu_features().neon);
  EXPECT_THAT(make_kernel_table(detect_cpu_features(), KernelBackend::kNeon).status().message(),
              HasSubstr("neon: this CPU lacks its instructions"));
#endif
  EXPECT_EQ(parse_kernel_backend("neon").value(), KernelBackend::kNeon);
}

TEST(KernelTable, ParsesItsOwnNames) {
  for (const KernelBackend backend : available_backends(kAll)) {
    EXPECT_EQ(parse_kernel_backend(kernel_backend_name(backend)).value(), backend);
  }
  EXPECT_EQ(parse_kernel_backend("auto").value(), std::nullopt);
  const auto refused = parse_kernel_backend("AVX512");
  ASSERT_FALSE(refused.is_ok());
  EXPECT_THAT(refused.status().message(),
              HasSubstr("\"AVX512\": expected ref, portable, neon, avx2, avx512, amx or auto"));
}

TEST(KernelTable, Avx512ImpliesAvx2OnThisMachine) {
  const CpuFeatures here = detect_cpu_features();
  EXPECT_TRUE(here.avx2 || !here.avx512);
}

}  // namespace
}  // namespace tandem::test

// Judgements about machines that are not there; field reports 65, 68 and 74.
#include "engine/doctor/machine_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/cat.h"
#include "engine/doctor/size_words.h"
#include "engine/doctor/sizing_check.h"
#include "engine/inspect.h"
#include "support/golden.h"

namespace tandem {
namespace {

using testing::HasSubstr;

class Checks {
 public:
  void operator()(DoctorCheck check) { checks_.insert_or_assign(check.name, std::move(check)); }
  const DoctorCheck& operator[](const std::string& name) const { return checks_.at(name); }

 private:
  std::map<std::string, DoctorCheck> checks_;
};

// A socket of two CCDs, 8 cores with two threads each.
MachineFacts two_ccds() {
  MachineFacts facts;
  facts.cpu.name = "Some CPU";
  facts.cpu.flags = {"avx2", "bmi2", "f16c", "fma"};
  facts.topology.allowed = *parse_cpu_list("0-15");
  for (int core = 0; core < 8; ++core) facts.topology.cores.push_back({core, core + 8});
  facts.topology.l3 = {*parse_cpu_list("0-3,8-11"), *parse_cpu_list("4-7,12-15")};
  facts.topology.l3_bytes = 32 << 20;
  facts.topology.numa_nodes = {facts.topology.allowed};
  facts.huge_pages = "madvise";
  facts.total_memory_bytes = 64'000'000'000;
  facts.available_memory_bytes = 60'000'000'000;
  return facts;
}

Checks check(const MachineFacts& facts, const ThreadPlacement& threads, KernelBackend chosen = KernelBackend::kAvx2,
             KernelBackend best = KernelBackend::kAvx2) {
  Checks checks;
  check_cpu(facts, chosen, best, threads, checks);
  check_memory_size(facts, checks);
  return checks;
}

TEST(MachineChecks, KernelsAndWhyNotBetterOnes) {
  MachineFacts facts = two_ccds();
  EXPECT_EQ(check(facts, {1, {}})["kernels"].verdict, Verdict::kOk);
  EXPECT_THAT(check(facts, {1, {}})["kernels"].message, HasSubstr("lacks avx512f, avx512bw, avx512dq, avx512vl"));
  const Checks chosen = check(facts, {1, {}}, KernelBackend::kRef);
  EXPECT_EQ(chosen["kernels"].verdict, Verdict::kWarning);
  EXPECT_THAT(chosen["kernels"].message, HasSubstr("this CPU runs avx2"));
  facts.cpu.flags = {"amx_bf16", "amx_tile", "avx2", "avx512_bf16", "avx512bw", "avx512dq",
                     "avx512f",  "avx512vl", "bmi2", "f16c",        "fma"};
  const Checks refused = check(facts, {1, {}}, KernelBackend::kAvx512, KernelBackend::kAvx512);
  EXPECT_EQ(refused["kernels"].verdict, Verdict::kOk);
  EXPECT_THAT(refused["kernels"].message, HasSubstr("not amx: this CPU, or the virtual machine, lacks the operating"));
  facts.cpu.flags = {"avx2"};
  const Checks old = check(facts, {1, {}}, KernelBackend::kPortable, KernelBackend::kPortable);
  EXPECT_EQ(old["kernels"].verdict, Verdict::kWarning);
  EXPECT_THAT(old["kernels"].message, HasSubstr("lacks fma, f16c, bmi2"));
}

// The list here and the detection that chooses kernels say the same of this machine.
TEST(MachineChecks, InstructionsAgreeWithTheKernelTable) {
  const MachineFacts facts = read_machine_facts();
  const CpuFeatures features = detect_cpu_features();
  if (facts.cpu.flags.empty()) GTEST_SKIP() << "this system lists no instructions";
  EXPECT_EQ(missing_instructions(facts.cpu, KernelBackend::kAvx2).empty(), features.avx2);
  EXPECT_EQ(missing_instructions(facts.cpu, KernelBackend::kAvx512).empty(), features.avx512);
  // The system may refuse what the CPU has.
  const bool lists_amx = missing_instructions(facts.cpu, KernelBackend::kAmx).empty();
  EXPECT_TRUE(lists_amx || !features.amx);
}

TEST(MachineChecks, MoreThreadsThanProcessorsOrQuota) {
  MachineFacts facts = two_ccds();
  EXPECT_EQ(check(facts, {16, {}})["threads"].verdict, Verdict::kOk);
  EXPECT_EQ(check(facts, {17, {}})["threads"].verdict, Verdict::kWarning);
  facts.quota = CpuQuota{2.5, "/sys/fs/cgroup/job"};
  EXPECT_EQ(check(facts, {2, {}})["threads"].verdict, Verdict::kOk);
  const Checks over = check(facts, {4, {}});
  EXPECT_EQ(over["threads"].verdict, Verdict::kWarning);
  EXPECT_THAT(over["threads"].message, HasSubstr("use --threads 2"));
  EXPECT_THAT(over["threads"].message, HasSubstr("/sys/fs/cgroup/job"));
  facts.quota->cpus = 0.2;
  EXPECT_EQ(check(facts, {1, {}})["threads"].verdict, Verdict::kOk) << "one thread is the least";
}

TEST(MachineChecks, ThreadsThatShareCoresOrStraddleCaches) {
  const MachineFacts facts = two_ccds();
  const Checks few = check(facts, {4, {4, 5, 6, 7}});
  EXPECT_EQ(few["smt"].verdict, Verdict::kOk);
  EXPECT_EQ(few["caches"].verdict, Verdict::kOk) << few["caches"].message;
  const Checks apart = check(facts, {4, {0, 1, 4, 5}});
  EXPECT_EQ(apart["caches"].verdict, Verdict::kWarning);
  EXPECT_THAT(apart["caches"].message, HasSubstr("4 threads use 2: straddling"));
  EXPECT_THAT(apart["caches"].message, HasSubstr("--cpus 0-3,8-11"));
  const Checks many = check(facts, {16, {}});
  EXPECT_EQ(many["smt"].verdict, Verdict::kWarning);
  EXPECT_THAT(many["smt"].message, HasSubstr("--threads 8"));
  EXPECT_EQ(many["caches"].verdict, Verdict::kWarning);
  EXPECT_THAT(many["caches"].message, HasSubstr("16 threads that are not bound use 2"));
  EXPECT_THAT(many["caches"].details[1], HasSubstr("4-7,12-15"));
  EXPECT_EQ(many["numa"].verdict, Verdict::kOk);
  EXPECT_EQ(check(facts, {1, {}})["caches"].verdict, Verdict::kOk);
}

// Threads as the engine places them by itself: those that fit one cache stay there.
TEST(MachineChecks, ThePlacementByDefaultIsJudged) {
  const MachineFacts facts = two_ccds();
  for (const int wish : {2, 4, 6}) {
    const auto placed = place_threads(facts.topology, std::nullopt, {.num_threads = wish, .cpus = std::nullopt});
    ASSERT_TRUE(placed.is_ok()) << placed.status().message();
    EXPECT_EQ(check(facts, placed.value())["caches"].verdict, wish <= 4 ? Verdict::kOk : Verdict::kWarning) << wish;
  }
}

TEST(MachineChecks, WhatTheSystemDoesNotSayIsSkipped) {
  MachineFacts facts = two_ccds();
  facts.topology.cores.clear();
  facts.topology.l3.clear();
  facts.topology.numa_nodes.clear();
  facts.huge_pages = "never";
  const Checks checks = check(facts, {4, {}});
  for (const char* name : {"smt", "caches", "numa"}) EXPECT_EQ(checks[name].verdict, Verdict::kSkipped) << name;
  EXPECT_EQ(checks["huge_pages"].verdict, Verdict::kWarning);
}

// Field report 65: a container's limit, not the host's memory.
TEST(MachineChecks, AControlGroupsLimitCounts) {
  MachineFacts facts = two_ccds();
  facts.memory_limit = MemoryLimit{8'000'000'000, "/sys/fs/cgroup/job"};
  facts.available_memory_bytes = 7'000'000'000;
  const Checks checks = check(facts, {1, {}});
  EXPECT_THAT(checks["size"].message, HasSubstr("7 GB can be used"));
  EXPECT_THAT(checks["size"].message, HasSubstr("/sys/fs/cgroup/job ends at 8 GB"));
}

// Field report 74, with K3's own numbers.
TEST(SizingCheck, MemoryBelowOneTokensWorkingSet) {
  const auto k3 = inspect_model(test::data_path("../../configs/k3.json"));
  ASSERT_TRUE(k3.is_ok()) << k3.status().message();
  const ModelBytes bytes = count_model_bytes(k3.value().config, k3.value().tensors);
  // systems.md §8.2: 92 layers of experts of 17.547 MB, 16 of 896 a token.
  EXPECT_NEAR(static_cast<double>(bytes.experts_per_token), 92 * 16 * 17.547e6, 92 * 16 * 1e3);
  EXPECT_EQ(bytes.experts, bytes.experts_per_token / 16 * 896);
  EXPECT_EQ(bytes.trunk + bytes.experts, static_cast<int64_t>(k3.value().tensors.text.bytes));
  const auto check_at = [&](int64_t available, double gb_s) {
    Checks checks;
    check_sizing(bytes, available, gb_s, checks);
    return checks["memory"];
  };
  EXPECT_EQ(check_at(bytes.whole(), 0).verdict, Verdict::kOk);
  const DoctorCheck streamed = check_at(bytes.one_token() + bytes.experts_per_token, 5.0);
  EXPECT_EQ(streamed.verdict, Verdict::kWarning);
  EXPECT_THAT(streamed.message, HasSubstr("2 tokens' worth"));
  EXPECT_THAT(streamed.message, HasSubstr("25.8 GB from the drive (at the measured 5 GB/s 5.17 s)"));
  const DoctorCheck starved = check_at(bytes.one_token() - 10'000'000'000, 2.0);
  EXPECT_EQ(starved.verdict, Verdict::kWarning);
  EXPECT_THAT(starved.message, HasSubstr("cannot hold one token's working set"));
  EXPECT_THAT(starved.message, HasSubstr("at least 10 GB again (at the measured 2 GB/s 5 s)"));
  EXPECT_THAT(starved.message, HasSubstr("tandem plan"));
  EXPECT_EQ(check_at(0, 0).verdict, Verdict::kSkipped);
}

TEST(SizeWords, ThreeDigits) {
  EXPECT_EQ(bytes_text(int64_t{0}), "0 B");
  EXPECT_EQ(bytes_text(int64_t{999}), "999 B");
  EXPECT_EQ(bytes_text(int64_t{17'547'264}), "17.5 MB");
  EXPECT_EQ(bytes_text(1.56e12), "1.56 TB");
  EXPECT_EQ(bytes_text(999'900.0), "1 MB");
  EXPECT_EQ(rounded(0.03123), "0.0312");
  EXPECT_EQ(rounded(1234.5), "1235");
}

}  // namespace
}  // namespace tandem

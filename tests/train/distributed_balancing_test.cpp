// Two processes over Gloo, each with its share of a batch, arrive at the bias that one process finds.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/cat.h"
#include "support/golden.h"
#include "support/temp_folder.h"
#include "train/distributed/gloo_group.h"
#include "train/gradient_check.h"
#include "train/modules/moe.h"

extern char** environ;

namespace tandem::train {
namespace {

using test::random_leaf;

constexpr int64_t kLayers = 3, kTokens = 257, kExperts = 12, kChosen = 3;
constexpr const char* kRankVariable = "TANDEM_TEST_GLOO_RANK";
constexpr const char* kFolderVariable = "TANDEM_TEST_GLOO_FOLDER";

// Rows [first, last) of the batch as a rank sees them, one histogram a layer; every seventh row is padding.
std::vector<BiasHistogram> count_rows(int64_t first, int64_t last) {
  ModelConfig config;
  config.num_experts = kExperts;
  config.num_experts_per_token = kChosen;
  std::vector<BiasHistogram> layers;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const at::Tensor bias = random_leaf({kExperts}, 100 + static_cast<uint64_t>(layer)).detach() * 0.1;
    const at::Tensor logits = random_leaf({kTokens, kExperts}, static_cast<uint64_t>(layer)).detach() -
                              at::arange(1, kExperts + 1, at::kDouble).log();
    const Routing routing = route(config, logits, bias);
    const at::Tensor real = at::arange(kTokens, at::kLong).remainder(7) != 0;
    layers.emplace_back(bias);
    layers.back().add(routing.scores.slice(0, first, last), routing.cutoff.slice(0, first, last),
                      real.slice(0, first, last));
  }
  return layers;
}

std::string bias_bytes(const std::vector<BiasHistogram>& layers) {
  std::string bytes;
  for (const BiasHistogram& layer : layers) {
    const at::Tensor bias = layer.solve(kChosen).contiguous();
    bytes.append(static_cast<const char*>(bias.data_ptr()), bias.nbytes());
  }
  return bytes;
}

// What a child process does; a plain run has nothing to do here.
TEST(DistributedBalancing, OneRank) {
  const char* rank_text = std::getenv(kRankVariable);
  if (rank_text == nullptr) return;
  const int rank = std::atoi(rank_text);
  const std::string folder = std::getenv(kFolderVariable);
  auto group = GlooGroup::join(cat(folder, "/meeting"), "127.0.0.1", rank, 2);
  ASSERT_TRUE(group.is_ok()) << group.status().message();
  // Uneven shares: 100 rows and 157.
  std::vector<BiasHistogram> layers = rank == 0 ? count_rows(0, 100) : count_rows(100, kTokens);
  const Status summed = group.value().sum_counts(layers);
  ASSERT_TRUE(summed.is_ok()) << summed.message();
  std::ofstream(cat(folder, "/bias-", rank), std::ios::binary) << bias_bytes(layers);
}

TEST(DistributedBalancing, TwoProcessesFindTheBiasOfOne) {
  const test::TempFolder folder;
  std::array<pid_t, 2> children{};
  for (size_t rank = 0; rank < children.size(); ++rank) {
    std::vector<std::string> variables = {cat(kRankVariable, "=", rank), cat(kFolderVariable, "=", folder.path())};
    for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
    std::vector<char*> environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    environment.push_back(nullptr);
    std::string program = "/proc/self/exe", filter = "--gtest_filter=DistributedBalancing.OneRank";
    std::array<char*, 3> arguments = {program.data(), filter.data(), nullptr};
    ASSERT_EQ(::posix_spawn(&children[rank], program.c_str(), nullptr, nullptr, arguments.data(), environment.data()),
              0);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  const std::string expected = bias_bytes(count_rows(0, kTokens));
  EXPECT_EQ(expected.size(), static_cast<size_t>(kLayers * kExperts) * sizeof(double));
  EXPECT_EQ(test::read_text(folder.path("bias-0")), expected);
  EXPECT_EQ(test::read_text(folder.path("bias-1")), expected);
}

TEST(DistributedBalancing, RefusesARankThatIsNotThere) {
  const auto group = GlooGroup::join("/tmp/unused", "127.0.0.1", 2, 2);
  ASSERT_FALSE(group.is_ok());
  EXPECT_NE(group.status().message().find("expected 0 to 1, found 2"), std::string::npos);
}

}  // namespace
}  // namespace tandem::train

// The load of the experts over a window of steps, against a count of the tokens that were routed.
#include "train/run/router_balancer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "train/small_models.h"

namespace tandem::train {
namespace {

constexpr int64_t kRows = 11;

// Tokens of each expert, one row a MoE layer.
using Counts = std::vector<std::vector<int64_t>>;

double largest_over_mean(const std::vector<int64_t>& counts) {
  const auto sum = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  return static_cast<double>(*std::ranges::max_element(counts)) / (sum / static_cast<double>(counts.size()));
}

class LoadWindow : public ::testing::Test {
 protected:
  LoadWindow() : config_(test::small_k3()), model_(TrainModel::random(config_, 3, InitStyle::kTraining, at::kDouble)) {
    for (const Parameter& parameter : model_.parameters()) {
      if (parameter.role == TensorRole::kRouterBias) moe_layers_.push_back(parameter.layer);
    }
    counted_.assign(moe_layers_.size(), std::vector<int64_t>(static_cast<size_t>(config_.num_experts)));
  }

  // One micro-batch of random choices, of which the last row is padding; adds the others to `counted_`.
  void add(RouterBalancer& balancer) {
    std::vector<Routing> routing(static_cast<size_t>(config_.num_hidden_layers));
    for (size_t i = 0; i < moe_layers_.size(); ++i) {
      const at::Tensor ids = at::randint(config_.num_experts, {kRows, config_.num_experts_per_token},
                                         at::TensorOptions().dtype(at::kLong));
      routing[static_cast<size_t>(moe_layers_[i])].ids = ids;
      for (int64_t j = 0; j < (kRows - 1) * config_.num_experts_per_token; ++j) {
        ++counted_[i][static_cast<size_t>(ids.data_ptr<int64_t>()[j])];
      }
    }
    balancer.add(routing, at::arange(kRows - 1, at::kLong));
  }

  // Steps of two micro-batches each.
  void take_steps(RouterBalancer& balancer, int64_t count) {
    for (int64_t step = 0; step < count; ++step) {
      balancer.begin_step();
      add(balancer);
      add(balancer);
      balancer.update();
    }
  }

  void expect_window(const RouterBalancer& balancer) const {
    const auto load = balancer.window_load();
    ASSERT_TRUE(load.has_value());
    ASSERT_EQ(load->size(), moe_layers_.size());
    for (size_t i = 0; i < load->size(); ++i) EXPECT_DOUBLE_EQ((*load)[i], largest_over_mean(counted_[i])) << i;
  }

  void forget() {
    for (auto& layer : counted_) std::ranges::fill(layer, 0);
  }

  ModelConfig config_;
  TrainModel model_;
  std::vector<int64_t> moe_layers_;
  Counts counted_;
};

TEST_F(LoadWindow, IsTheCountOfItsSteps) {
  RouterBalancer balancer(model_, BalancingKind::kNone);
  EXPECT_GT(moe_layers_.size(), 1u);
  for (int window = 0; window < 2; ++window) {
    take_steps(balancer, kLoadWindowSteps - 1);
    EXPECT_FALSE(balancer.window_load().has_value());
    take_steps(balancer, 1);
    expect_window(balancer);
    forget();
  }
  take_steps(balancer, 1);
  EXPECT_FALSE(balancer.window_load().has_value());
}

TEST_F(LoadWindow, LeavesOutAStepThatIsNotTaken) {
  RouterBalancer balancer(model_, BalancingKind::kNone);
  take_steps(balancer, 5);
  const Counts before = counted_;
  balancer.begin_step();
  add(balancer);
  counted_ = before;
  take_steps(balancer, kLoadWindowSteps - 5);
  expect_window(balancer);
}

TEST_F(LoadWindow, GoesOnFromItsState) {
  RouterBalancer first(model_, BalancingKind::kNone);
  take_steps(first, 23);
  RouterBalancer second(model_, BalancingKind::kNone);
  for (size_t i = 0; i < first.state().size(); ++i) {
    EXPECT_EQ(first.state()[i].first, second.state()[i].first);
    at::Tensor(second.state()[i].second).copy_(first.state()[i].second);
  }
  take_steps(second, kLoadWindowSteps - 23);
  expect_window(second);
}

}  // namespace
}  // namespace tandem::train

#include "train/optim/quantile_balancing.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "train/gradient_check.h"
#include "train/modules/moe.h"

namespace tandem::train {
namespace {

using test::random_leaf;

ModelConfig router(int64_t experts, int64_t k) {
  ModelConfig config;
  config.num_experts = experts;
  config.num_experts_per_token = k;
  return config;
}

// Skewed logits: expert j is favoured by −log(j + 1), as Zipf would.
at::Tensor zipf_logits(int64_t tokens, int64_t experts, uint64_t seed) {
  return random_leaf({tokens, experts}, seed).detach() - at::arange(1, experts + 1, at::kDouble).log();
}

double max_over_mean_load(const Routing& routing, int64_t experts) {
  const at::Tensor load = routing.ids.reshape({-1}).bincount({}, experts).to(at::kDouble);
  return (load.max() / load.mean()).item<double>();
}

TEST(QuantileBalancing, EightTokensFourExperts) {
  const at::Tensor scores =
      at::tensor({0.28, 0.48, 0.24, 0.46, 0.58, 0.46, 0.60, 0.03, 0.34, 0.46, 0.28, 0.29, 0.56, 0.33, 0.32, 0.23,
                  0.67, 0.53, 0.59, 0.42, 0.68, 0.41, 0.25, 0.02, 0.43, 0.53, 0.02, 0.22, 0.37, 0.29, 0.04, 0.21},
                 at::kDouble)
          .reshape({8, 4});
  const ModelConfig config = router(4, 1);
  const auto load = [](const Routing& routing) { return routing.ids.reshape({-1}).bincount({}, 4); };
  Routing routing = route(config, scores.logit(), at::zeros({4}, at::kDouble));
  EXPECT_TRUE(load(routing).equal(at::tensor({4, 3, 1, 0}, at::kLong)));
  for (int step = 0; step < 5; ++step) {  // balanced after the first, and it stays so
    const at::Tensor bias = centred(exact_quantile_bias(routing.scores, routing.cutoff, 1));
    EXPECT_NEAR(bias.sum().item<double>(), 0.0, 1e-12);
    routing = route(config, scores.logit(), bias);
    EXPECT_TRUE(load(routing).equal(at::tensor({2, 2, 2, 2}, at::kLong)));
  }
}

// The count behind the formula: at most ⌊q⌋ tokens need less than the new bias, and more than ⌊q⌋ need no more. They
// are not one token apart: wherever expert j is the cutoff itself, it needs its old bias exactly.
TEST(QuantileBalancing, ExactFormCountsItsQuota) {
  for (const int64_t tokens : {64, 101}) {
    const Routing routing = route(router(12, 3), zipf_logits(tokens, 12, 1), at::zeros({12}, at::kDouble));
    const at::Tensor bias = exact_quantile_bias(routing.scores, routing.cutoff, 3);
    const at::Tensor required = routing.cutoff.unsqueeze(1) - routing.scores;
    const int64_t quota = tokens * 3 / 12;
    EXPECT_LE((required < bias).sum(0).max().item<int64_t>(), quota);
    EXPECT_GT((required <= bias).sum(0).min().item<int64_t>(), quota);
  }
}

TEST(QuantileBalancing, HistogramWithinABinOfExact) {
  for (const int64_t bins : {50, 1000}) {
    for (const int64_t tokens : {7, 64, 501}) {
      at::Tensor bias = 0.1 * random_leaf({12}, 2).detach();
      const Routing routing = route(router(12, 3), zipf_logits(tokens, 12, 1), bias);
      BiasHistogram histogram(bias, bins);
      histogram.add(routing.scores, routing.cutoff, {});
      const at::Tensor exact = exact_quantile_bias(routing.scores, routing.cutoff, 3);
      EXPECT_LE((histogram.solve(3) - exact).abs().max().item<double>(), histogram.bin_width());
    }
  }
}

TEST(QuantileBalancing, ShardsAddUp) {
  const at::Tensor bias = 0.1 * random_leaf({12}, 2).detach();
  const Routing routing = route(router(12, 3), zipf_logits(200, 12, 1), bias);
  const at::Tensor mask = at::arange(200, at::kLong).remainder(7).ne(0);
  BiasHistogram whole(bias), sharded(bias);
  whole.add(routing.scores, routing.cutoff, mask);
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{150, 50}, {0, 3}, {3, 147}}) {
    BiasHistogram part(bias);
    part.add(routing.scores.narrow(0, begin, count), routing.cutoff.narrow(0, begin, count),
             mask.narrow(0, begin, count));
    sharded.counts().add_(part.counts());
  }
  EXPECT_TRUE(sharded.counts().equal(whole.counts()));
  EXPECT_TRUE(sharded.solve(3).equal(whole.solve(3)));
  // Tokens that are masked do not count: the same as leaving them out.
  const at::Tensor kept = mask.nonzero().squeeze(1);
  BiasHistogram without(bias);
  without.add(routing.scores.index_select(0, kept), routing.cutoff.index_select(0, kept), {});
  EXPECT_TRUE(without.counts().equal(whole.counts()));
}

// On fresh batches of skewed scores, bias from the batch before: balanced within a few steps, and it stays so.
TEST(QuantileBalancing, ConvergesOnZipfScores) {
  const int64_t experts = 32, k = 4, tokens = 16384;
  const ModelConfig config = router(experts, k);
  for (const bool exact : {true, false}) {
    at::Tensor bias = at::zeros({experts}, at::kDouble);
    double mean_of_last = 0;
    for (int step = 0; step < 12; ++step) {
      const Routing routing = route(config, zipf_logits(tokens, experts, 50 + static_cast<uint64_t>(step)), bias);
      const double ratio = max_over_mean_load(routing, experts);
      if (step == 0) {
        EXPECT_GT(ratio, 3.0);
      }
      if (step >= 8) mean_of_last += ratio / 4;
      BiasHistogram histogram(bias);
      histogram.add(routing.scores, routing.cutoff, {});
      bias = centred(exact ? exact_quantile_bias(routing.scores, routing.cutoff, k) : histogram.solve(k));
    }
    std::printf("%s form: max/mean load %.3f\n", exact ? "exact" : "histogram", mean_of_last);
    // Sampling alone gives about 1 + 2.5 / √(tokens k / experts) = 1.055 for the largest of 32 loads.
    EXPECT_LT(mean_of_last, 1.08);
  }
}

}  // namespace
}  // namespace tandem::train

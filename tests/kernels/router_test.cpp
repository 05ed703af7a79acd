#include "kernels/moe/router.h"

#include <gmock/gmock.h>

#include "kernels/dense_case.h"
#include "kernels/linear/linear.h"
#include "support/compare.h"
#include "support/golden.h"

namespace tandem::test {
namespace {

struct Choice {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

struct Settings {
  int64_t k = 1;
  int64_t num_groups = 1;
  int64_t topk_group = 1;
  bool renormalize = true;
  float scale = 1.f;
};

Status select(const ExecContext& ctx, const Matrix& logits, const std::vector<float>& bias, const Settings& s,
              Choice& out) {
  Matrix copy = logits;
  const int64_t T = logits.rows();
  out.ids.assign(static_cast<size_t>(T * s.k), -7);
  out.weights.assign(static_cast<size_t>(T * s.k), NAN);
  RouterSelectArgs args;
  args.logits = copy.view();
  args.bias = VectorView<const float>::contiguous(bias.data(), {static_cast<int64_t>(bias.size())});
  args.num_groups = s.num_groups;
  args.topk_group = s.topk_group;
  args.renormalize = s.renormalize;
  args.scale = s.scale;
  args.topk_ids = MatrixView<int32_t>::contiguous(out.ids.data(), {T, s.k});
  args.topk_weights = MatrixView<float>::contiguous(out.weights.data(), {T, s.k});
  return router_select(ctx, args);
}

TEST(Router, Golden) {
  const Golden golden = Golden::load("golden/ops/router.safetensors");
  for_each_backend([&](BackendFixture& backend) {
    Matrix x(32, 48, golden["x"].f32);
    Matrix logits(32, 40);
    WeightView gate;
    gate.data = golden["weight"].f32.data();
    gate.rows = 40;
    gate.cols = 48;
    gate.format = WeightFormat::kF32;
    const LinearOutput output{gate, logits.view()};
    ASSERT_TRUE(linear(backend.ctx(), {x.view(), {&output, 1}}).is_ok());
    const auto check = [&](const std::string& name, const Settings& settings) {
      Choice choice;
      ASSERT_TRUE(select(backend.ctx(), logits, golden["bias"].f32, settings, choice).is_ok());
      // The golden lists a token's experts in its own order; ours are ascending.
      const std::vector<int32_t>& ids = golden[name + ".idx"].i32;
      const std::vector<float>& weights = golden[name + ".w"].f32;
      for (int64_t t = 0; t < 32; ++t) {
        std::map<int32_t, float> expected;
        for (int64_t j = 0; j < settings.k; ++j) expected[ids[t * settings.k + j]] = weights[t * settings.k + j];
        int64_t j = 0;
        for (const auto& [id, weight] : expected) {
          ASSERT_EQ(choice.ids[t * settings.k + j], id) << name << " token " << t;
          ASSERT_NEAR(choice.weights[t * settings.k + j], weight, tolerance_f32(48, weight)) << name << " token " << t;
          ++j;
        }
      }
    };
    check("top6", {6, 1, 1, true, 1.f});
    check("top6_scaled", {6, 1, 1, true, 2.446f});
    check("top1", {1, 1, 1, true, 1.f});
    check("top4_raw", {4, 1, 1, false, 1.f});
    check("grouped", {4, 8, 3, true, 1.f});
  });
}

// model.md §9: expert 0 has the largest score and is not chosen.
TEST(Router, Vector) {
  BackendFixture backend(KernelBackend::kRef);
  const Matrix logits(1, 6, {2.f, 1.f, -1.f, 0.f, 0.5f, -2.f});
  const std::vector<float> bias = {-0.5f, 0.f, 0.6f, 0.1f, 0.f, 0.2f};
  Choice choice;
  ASSERT_TRUE(select(backend.ctx(), logits, bias, {3}, choice).is_ok());
  EXPECT_THAT(choice.ids, ::testing::ElementsAre(1, 2, 4));
  EXPECT_TRUE(
      all_close(choice.weights, std::vector<float>{0.450586689f, 0.165761579f, 0.383651731f}, tolerance_f32(3, 1.f)));
  ASSERT_TRUE(select(backend.ctx(), logits, bias, {3, 1, 1, true, 2.446f}, choice).is_ok());
  EXPECT_TRUE(
      all_close(choice.weights, std::vector<float>{1.102135042f, 0.405452823f, 0.938412134f}, tolerance_f32(3, 1.f)));
}

TEST(Router, TiesGoToTheLowestIndex) {
  BackendFixture backend(KernelBackend::kRef);
  const Matrix logits(1, 8, std::vector<float>(8, 0.25f));
  Choice choice;
  ASSERT_TRUE(select(backend.ctx(), logits, std::vector<float>(8, 0.f), {3}, choice).is_ok());
  EXPECT_THAT(choice.ids, ::testing::ElementsAre(0, 1, 2));
  // Equal groups too: groups {0,1}, {2,3}, … tie, the first two stay.
  ASSERT_TRUE(select(backend.ctx(), logits, std::vector<float>(8, 0.f), {3, 4, 2}, choice).is_ok());
  EXPECT_THAT(choice.ids, ::testing::ElementsAre(0, 1, 2));
}

// Negative biased scores: a refused group must lose even to them, so its score becomes −inf and not 0.
TEST(Router, RefusedGroupsLoseToNegativeScores) {
  BackendFixture backend(KernelBackend::kRef);
  const Matrix logits(1, 6, std::vector<float>(6, 0.f));
  const std::vector<float> bias = {-3.f, -3.f, -1.f, -5.f, -4.f, -4.f};  // group sums: −5, −5 (tie: first), −7
  Choice choice;
  ASSERT_TRUE(select(backend.ctx(), logits, bias, {2, 3, 1}, choice).is_ok());
  EXPECT_THAT(choice.ids, ::testing::ElementsAre(0, 1));
  ASSERT_TRUE(select(backend.ctx(), logits, bias, {4, 3, 2}, choice).is_ok());
  EXPECT_THAT(choice.ids, ::testing::ElementsAre(0, 1, 2, 3));
}

TEST(Router, GroupsOfOneExpert) {
  BackendFixture backend(KernelBackend::kRef);
  const Matrix logits(1, 4, {0.f, 3.f, 1.f, 2.f});
  Choice choice;
  ASSERT_TRUE(select(backend.ctx(), logits, std::vector<float>(4, 0.f), {2, 4, 3}, choice).is_ok());
  EXPECT_THAT(choice.ids, ::testing::ElementsAre(1, 3));
}

TEST(Router, ExtremeLogitsAndAllExperts) {
  BackendFixture backend(KernelBackend::kRef);
  const Matrix logits(1, 3, {-200.f, -300.f, -INFINITY});
  Choice choice;
  ASSERT_TRUE(select(backend.ctx(), logits, std::vector<float>(3, 0.f), {3}, choice).is_ok());
  EXPECT_THAT(choice.ids, ::testing::ElementsAre(0, 1, 2));
  for (const float w : choice.weights) EXPECT_TRUE(std::isfinite(w));  // the 1e-20 keeps 0/0 away
  ASSERT_TRUE(select(backend.ctx(), Matrix(0, 3), std::vector<float>(3, 0.f), {2}, choice).is_ok());
}

TEST(Router, ARowThatIsNotFiniteGetsNanWeightsAndLeavesTheOthersAlone) {
  BackendFixture backend(KernelBackend::kRef);
  Matrix logits = Matrix::random(3, 5, 1);
  const std::vector<float> bias(5, 0.f);
  Choice clean, choice;
  ASSERT_TRUE(select(backend.ctx(), logits, bias, {2}, clean).is_ok());
  logits(1, 4) = NAN;
  ASSERT_TRUE(select(backend.ctx(), logits, bias, {2}, choice).is_ok());
  for (const size_t i : {2, 3}) {
    EXPECT_EQ(choice.ids[i], static_cast<int32_t>(i - 2));
    EXPECT_TRUE(std::isnan(choice.weights[i]));
  }
  for (const size_t i : {0, 1, 4, 5}) {
    EXPECT_EQ(choice.ids[i], clean.ids[i]);
    EXPECT_EQ(choice.weights[i], clean.weights[i]);
  }
}

TEST(Router, Refusals) {
  BackendFixture backend(KernelBackend::kRef);
  const Matrix logits = Matrix::random(1, 6, 1);
  const std::vector<float> bias(6, 0.f);
  Choice choice;
  const auto message_of = [&](const Settings& settings) {
    const Status status = select(backend.ctx(), logits, bias, settings, choice);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(message_of({7}), ::testing::HasSubstr("at most 6 experts a token"));
  EXPECT_THAT(message_of({3, 3, 1}), ::testing::HasSubstr("at most 2 experts a token"));
  EXPECT_THAT(message_of({1, 4, 1}),
              ::testing::HasSubstr("num_groups: expected a number that divides the 6 experts, found 4"));
  EXPECT_THAT(message_of({1, 3, 4}), ::testing::HasSubstr("topk_group: expected a number in [1, 3], found 4"));
  EXPECT_FALSE(select(backend.ctx(), logits, std::vector<float>(5, 0.f), {1}, choice).is_ok());
}

}  // namespace
}  // namespace tandem::test
